"""Several networks and settings measured in one short lease: all compile side by side, then measure one at a time.

    PYTHONPATH=src python benchmarks/sweep.py OUT_FOLDER width:batch:members[:option...] ...

Options: limit0 (unlimited search for cuDNN kernels), descent, pdl (inductor's coordinate descent, dependent
launches), ghost (batches of 64), eager, profile. `predict:width[:compiled]` times prediction.
Figures go to OUT_FOLDER as they come. (Combined kernels, `combo` in RESULTS.md, are what the step itself now asks for.)
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def work(out: Path, jobs: list[str], job: str) -> None:
    """One job, in a process of its own."""
    began = time.perf_counter()
    width, batch, members, *options = [*job.split(":"), ""]
    import torch
    from torch._inductor.runtime import triton_heuristics

    from mixmo.engine import benchmark
    from mixmo.engine.step_timer import StepTimer
    from mixmo.models import multiply_adds
    from mixmo.recipes import named

    wait = {"seconds": 0.0}

    def ready() -> None:
        """The device is ours from here on: nobody compiles any more, and the jobs before this one are done."""
        if (out / f"{job}.ready").exists():
            return
        asked = time.perf_counter()
        (out / f"{job}.ready").touch()
        awaited = [f"{other}.ready" for other in jobs] + [f"{other}.done" for other in jobs[: jobs.index(job)]]
        while not all((out / name).exists() for name in awaited):
            time.sleep(0.1)
        wait["seconds"] = time.perf_counter() - asked

    tuner: Any = triton_heuristics.CachingAutotuner
    autotune = tuner.benchmark_all_configs

    def alone(*args: Any, **kwargs: Any) -> Any:
        ready()
        return autotune(*args, **kwargs)

    tuner.benchmark_all_configs = alone
    if width == "predict":
        predict(out, job, int(batch), "compiled" in job, ready)
        return
    if "limit0" in options:
        torch.backends.cudnn.benchmark_limit = 0
    torch._inductor.config.coordinate_descent_tuning = "descent" in options
    torch._inductor.config.triton.enable_pdl = "pdl" in options
    method = "cifar100/vanilla" if members == "1" else "cifar100/cut-mixmo"
    ghost = 64 if "ghost" in options else 0
    recipe = named(method).replace(width=int(width), batch_size=int(batch), ghost=ghost, precision="bf16")
    device = torch.device("cuda")
    dataset = benchmark.synthetic("cifar100", device)
    timer = StepTimer(recipe, dataset, device, compiled="eager" not in options, kernels="cudnn")
    torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    first = timer.warm_up()
    ready()
    for _ in range(16):
        timer.next_step()
    losses = (timer.step.meter / 20).tolist()
    alone_, whole = (benchmark.timed(call, device, 0.35, 5) for call in (timer.same_step, timer.next_step))
    n = recipe.batch_size
    operations = 6 * multiply_adds(timer.net, (3, 32, 32))
    result: dict[str, Any] = {
        "job": job,
        "step": n / alone_.seconds,
        "step_ms": 1000 * alone_.seconds,
        "end_to_end": n / whole.seconds,
        "end_to_end_ms": 1000 * whole.seconds,
        "spread": [alone_.spread, whole.spread],
        "tflops": operations * n / whole.seconds / 1e12,
        "memory_gib": torch.cuda.max_memory_allocated() / 2**30,
        "compile_s": first - wait["seconds"],
        "mode": timer.step.mode,
        "loss": losses,  # of the first 20 steps: the same for every way to run them
    }
    result["host_ms"] = host_ms(timer.next_step)
    result["host_draw_ms"] = host_ms(lambda: timer.batches.draw(timer.samples(0), timer.stream.at("step", 1)))
    if "profile" in options:
        (out / f"{job}.profile".replace(":", "_")).write_text(kernels(timer.next_step))
    result["process_s"] = time.perf_counter() - began
    result["measuring_s"] = time.perf_counter() - start - wait["seconds"] - result["compile_s"]
    (out / f"{job}.json".replace(":", "_")).write_text(json.dumps(result))
    print(
        f"{job:32} step {result['step']:9,.0f} img/s {result['step_ms']:8.3f} ms | e2e {result['end_to_end']:9,.0f} "
        f"{result['end_to_end_ms']:8.3f} ms (+-{100 * whole.spread:.1f} %) | {result['tflops']:5.0f} TFLOP/s | "
        f"{result['memory_gib']:5.1f} GiB | compile {result['compile_s']:5.1f} s | host {result['host_ms']:.3f} ms, "
        f"draw {result['host_draw_ms']:.3f} | {result['mode']} | loss {result['loss'][0]:.4f}",
        flush=True,
    )


def host_ms(call: Callable[[], object]) -> float:
    """What the host does, without the device: enqueue into an idle device, then wait outside of the clock."""
    import torch

    times = []
    for _ in range(20):
        torch.cuda.synchronize()
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    torch.cuda.synchronize()
    return 1000 * sorted(times)[10]


def kernels(step: Callable[[], object]) -> str:
    """What runs on the device in a step, the longest first."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        for _ in range(5):
            step()
        torch.cuda.synchronize()
    events = sorted(trace.key_averages(), key=lambda e: -e.self_device_time_total)
    lines = [f"{e.self_device_time_total / 5e3:9.4f} ms {e.count / 5:7.1f} x  {e.key[:170]}" for e in events]
    total, count = sum(e.self_device_time_total for e in events) / 5e3, sum(e.count for e in events) / 5
    return "\n".join([f"{total:.3f} ms {count} kernels", *lines[:130]])


def predict(out: Path, job: str, width: int, compiled: bool, ready: Callable[[], None]) -> None:
    """A pass over 10,000 test images: eager, folded, compiled."""
    import torch

    from mixmo import Ensemble
    from mixmo.engine import benchmark
    from mixmo.inference.predict import predict_split
    from mixmo.recipes import named
    from mixmo.surgery.fold import fold

    recipe, device = named("cifar100/cut-mixmo").replace(width=width), torch.device("cuda")
    dataset = benchmark.synthetic("cifar100", device)
    net, vanilla = (
        each.network(100, (3, 32, 32)).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        for each in (recipe, named("cifar100/vanilla").replace(width=width))
    )
    ready()
    torch.backends.cudnn.benchmark = True
    seconds: dict[str, Any] = {}

    def measure(name: str, net: Ensemble, **options: Any) -> None:
        torch.cuda.synchronize()
        t = time.perf_counter()
        predict_split(net, dataset, dataset.test, **options)
        torch.cuda.synchronize()
        first = time.perf_counter() - t
        timing = benchmark.timed(lambda: predict_split(net, dataset, dataset.test, **options), device, 0.4, 3)
        seconds[name] = {"first": first, "then": timing.seconds, "spread": timing.spread}

    folded = fold(net)
    logits = [predict_split(each, dataset, dataset.test).logits for each in (net, folded)]
    seconds["difference of folded"] = (logits[0] - logits[1]).abs().max().item()
    measure("bf16 eager", net, precision="bf16")
    measure("bf16 eager folded", folded, precision="bf16")
    measure("bf16 eager vanilla", vanilla, precision="bf16")
    measure("bf16 eager batch 2000", net, precision="bf16", batch_size=2000)
    measure("fp32 (TF32) eager", net)
    if compiled:
        net.each = torch.compile(net.each, dynamic=False)
        measure("bf16 compiled", net, precision="bf16")
    (out / f"{job}.json".replace(":", "_")).write_text(json.dumps(seconds))
    print(job, json.dumps(seconds), flush=True)


def main() -> None:
    out, jobs = Path(sys.argv[1]), sys.argv[2:]
    if "--work" in jobs:
        job = jobs.pop()
        try:
            work(out, jobs[:-1], job)
        finally:
            (out / f"{job}.ready").touch()
            (out / f"{job}.done").touch()
        return
    out.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "3", "OMP_NUM_THREADS": "1"}
    processes = []
    for job in jobs:
        log = (out / f"{job}.log".replace(":", "_")).open("w")
        command = [sys.executable, __file__, str(out), *jobs, "--work", job]
        processes.append((job, subprocess.Popen(command, env=environment, stderr=log)))
    for job, process in processes:
        if process.wait():
            print(job, "failed:", (out / f"{job}.log".replace(":", "_")).read_text()[-1500:], flush=True)
            for state in ("ready", "done"):
                (out / f"{job}.{state}").touch()


if __name__ == "__main__":
    main()
