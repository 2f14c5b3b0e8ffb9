"""A machine of a Ray cluster is lost while it trains: the run resumes on another, to the same weights.

`python tests/faults/nodes.py` starts a cluster of two "machines" on this one and kills that which trains.
"""

import sys
import tempfile
import threading
import time
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

from mixmo.engine import Runtime, train
from mixmo.recipes import named
from mixmo.reproduce.cluster import RayTasks
from mixmo.reproduce.execute import Failures, run_by_workers
from mixmo.reproduce.store import Store
from mixmo.runs.checkpoint import Checkpoints

RECIPE = named("digits/cut-mixmo").replace(width=1, batch_size=128, epochs=6)
RUNTIME = Runtime(device="cpu", quiet=True, save_seconds=0.1)
MEMORY = 80 * 2**20  # of the object store


def lose_a_node(folder: Path) -> bool:
    """Train through Ray, lose the node once there is a checkpoint; return whether the result is the undisturbed one."""
    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": MEMORY}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    node = cluster.add_node(num_cpus=1, object_store_memory=MEMORY)
    ray.init(address=cluster.address, log_to_driver=False)
    store, failures = Store(folder / "out"), list[Failures]()
    tasks = RayTasks(ray, RUNTIME, gpus=0)
    plan = threading.Thread(target=lambda: failures.append(run_by_workers([RECIPE], store, tasks)), daemon=True)
    plan.start()
    while not Checkpoints(store.folder(RECIPE) / "checkpoints").latest():
        time.sleep(0.1)
    cluster.remove_node(node, allow_graceful=False)
    cluster.add_node(num_cpus=1, object_store_memory=MEMORY)
    plan.join(300)
    ray.shutdown()
    cluster.shutdown()
    alone = train(RECIPE, folder / "alone", RUNTIME)
    names = ("last.safetensors", "logits-last.safetensors")
    found = store.find(RECIPE)
    same = found is not None and all((found.path / n).read_bytes() == (alone.path / n).read_bytes() for n in names)
    return failures == [{}] and same


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="mixmo-nodes-") as made:
        survived = lose_a_node(Path(made))
    print("the run resumed on another node, to the same weights" if survived else "the run was lost")
    sys.exit(not survived)
