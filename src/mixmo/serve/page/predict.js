// The panel that predicts one image.

import { $, addSamples, classesCard, element, markSample, memberColour, meter, percent, predictFile, readable, showError } from "./dom.js";

let model;
let latest = 0; // only the response to the last image is shown
let address = null;

export function start(described) {
  model = described;
  addSamples($("samples"), model.samples, predict);
  $("file").addEventListener("change", () => {
    if ($("file").files.length) predict($("file").files[0]);
    $("file").value = "";
  });
  const drop = $("drop");
  for (const name of ["dragenter", "dragover"]) drop.addEventListener(name, () => drop.classList.add("over"));
  for (const name of ["dragleave", "drop"]) drop.addEventListener(name, () => drop.classList.remove("over"));
  const fitted = model.calibration?.conformal || model.calibration?.selective ? model.calibration.samples.toLocaleString("en") : null;
  $("explain").textContent = [
    "The ensemble is the softmax of the subnetworks' mean logits.",
    model.members > 1 ? "All subnetworks read the same image, in one forward pass." : "",
    fitted ? `Prediction sets and abstention were fitted to ${fitted} images that the network was not trained on; they hold for images like those.` : "",
  ].join(" ");
}

export async function predict(file) {
  const mine = ++latest;
  showError("");
  $("verdict").classList.add("busy");
  try {
    const prediction = await predictFile(file);
    if (mine === latest) show(file, prediction);
  } catch (error) {
    if (mine === latest) showError(error.message);
  } finally {
    if (mine === latest) $("verdict").classList.remove("busy");
  }
}

function show(file, prediction) {
  showImage(file, prediction);
  $("label").textContent = readable(prediction.label);
  $("label").dataset.label = prediction.label;
  $("probability").textContent = percent(prediction.probability);
  $("probability").dataset.value = prediction.probability;
  const calibrated = prediction.calibrated_probability;
  $("calibrated").textContent = calibrated === null ? "probability, not calibrated" : `probability; calibrated ${percent(calibrated)}`;
  $("calibrated").dataset.value = calibrated ?? "";
  showDecision(prediction);
  showSet(prediction.set);
  showAgreement(prediction);
  const members = prediction.members.map((classes, member) =>
    classesCard(`Subnetwork ${member + 1}`, "", classes, memberColour(member)));
  $("members").replaceChildren(classesCard("Ensemble", "", prediction.ensemble), ...members);
}

function showImage(file, prediction) {
  if (address) URL.revokeObjectURL(address);
  address = URL.createObjectURL(file);
  $("photo").onerror = () => { $("photo").src = prediction.input; }; // a format that this browser does not show
  $("photo").src = address;
  $("photo").hidden = false;
  $("drop-hint").hidden = true;
  $("seen-image").src = prediction.input;
  $("seen-size").textContent = `reads ${model.size[2]} × ${model.size[1]}`;
  $("seen").hidden = false;
  markSample($("samples"), file);
}

function showDecision({ abstain }) {
  const selective = model.calibration?.selective;
  const risk = selective ? `${Number((100 * selective.risk).toFixed(2))} %` : "";
  $("decision").className = abstain ? "no" : "yes";
  $("decision").textContent = abstain === null ? "" : abstain
    ? `Abstains: not confident enough to keep the error rate below ${risk}`
    : `Predicts: confident enough to keep the error rate below ${risk}`;
}

function showSet(set) {
  const level = model.calibration?.conformal?.level;
  $("set-title").textContent = set === null ? "Prediction set" : `Prediction set: contains the true class with probability ${percent(level)}`;
  const items = (set ?? []).map((label) => element("li", { "data-label": label }, readable(label)));
  const why = set === null ? "not calibrated; mixmo serve --calibrate-on FOLDER fits sets and abstention to held-out images" : "empty set: no class is probable enough";
  $("set").replaceChildren(...(items.length ? items : [element("li", { class: "none" }, why)]));
}

function showAgreement({ members, mutual_information: information, entropy }) {
  const labels = [...new Set(members.map((classes) => readable(classes[0].label)))];
  const [one] = labels;
  $("agreement").textContent = members.length === 1 ? "There is only one subnetwork." : labels.length === 1
    ? `Yes: all ${members.length} predict ${one}.`
    : `No: ${members.map((classes, m) => `subnetwork ${m + 1} predicts ${readable(classes[0].label)}`).join(", ")}.`;
  meter($("information"), information, Math.log(members.length), "Mutual information");
  meter($("entropy"), entropy, Math.log(model.classes.length || 2), "Entropy");
}
