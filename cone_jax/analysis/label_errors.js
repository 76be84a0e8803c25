"use strict";
// Decisions by path: the class it is, "" to leave the picture out, null where the label is right.
const kept = "cone_jax label errors " + location.pathname;
const rows = [...document.querySelectorAll(".decision")];
let decisions = {};
try { decisions = JSON.parse(localStorage.getItem(kept)) || {}; } catch (error) { decisions = {}; }

function show(row) {
  const path = row.dataset.path, said = row.querySelector(".said");
  const decided = Object.hasOwn(decisions, path);
  const choice = decided ? decisions[path] : undefined;
  said.textContent = !decided ? "" : choice === null ? "kept" : choice === "" ? "left out" : "now " + choice;
  row.style.opacity = decided ? 0.55 : 1;
  const open = rows.filter((one) => !Object.hasOwn(decisions, one.dataset.path)).length;
  document.getElementById("count").textContent = (rows.length - open) + " decided, " + open + " open";
}

function decide(row, choice) {
  decisions[row.dataset.path] = choice;
  try { localStorage.setItem(kept, JSON.stringify(decisions)); } catch (error) { /* kept on the page */ }
  show(row);
}

const quoted = (text) => (/[",\r\n]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text);

// Of each picture the data set's own label and the corrected one: those that the run was trained with,
// and what has been decided here.
function correctionsFile() {
  const corrected = new Map();
  for (const { dataset } of document.querySelectorAll(".earlier")) {
    corrected.set(dataset.path, [dataset.given, dataset.corrected]);
  }
  for (const { dataset } of rows) {
    const choice = decisions[dataset.path];
    if (choice === dataset.given) corrected.delete(dataset.path);
    else if (choice !== undefined && choice !== null) corrected.set(dataset.path, [dataset.given, choice]);
  }
  const lines = [...corrected].map(([path, pair]) => [path, ...pair].map(quoted).join(","));
  return ["path,label,corrected", ...lines].join("\n") + "\n";
}

for (const row of rows) {
  row.querySelector('[data-do="accept"]').onclick = () => decide(row, row.querySelector("select").value);
  row.querySelector('[data-do="reject"]').onclick = () => decide(row, null);
  row.querySelector('[data-do="drop"]').onclick = () => decide(row, "");
  show(row);
}
document.getElementById("save").onclick = () => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([correctionsFile()], { type: "text/csv" }));
  link.download = "corrections.csv";
  link.click();
  URL.revokeObjectURL(link.href);
};
