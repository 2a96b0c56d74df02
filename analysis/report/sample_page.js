// The page of single samples. "data" is described in analysis/sample_page.py; its columns have one value per sample.

const byId = (id) => document.getElementById(id);

async function unpack(id) {
  const bytes = Uint8Array.from(atob(byId(id).textContent), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

async function loadModule(id) {
  const url = URL.createObjectURL(new Blob([await unpack(id)], { type: "text/javascript" }));
  return import(url).finally(() => URL.revokeObjectURL(url));
}

function element(name, text = "", attributes = {}) {
  const created = Object.assign(document.createElement(name), attributes);
  created.textContent = text;
  return created;
}

const format = (value, decimals) =>
  value === null ? "–" : value.toLocaleString("en", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });

const data = JSON.parse(await unpack("data"));
const style = element("style", await unpack("datatables-css"));
document.head.prepend(style); // before the rules of this page
const { jQuery } = await loadModule("datatables");
if (byId("vega")) await loadModule("vega");

if (byId("fpr")) byId("fpr").value = data.focus;
let fpr = data.focus; // the index of the selected FPR
const atFpr = new Set(["flip_rate", "votes"]);
const valueOf = (name, s) => (atFpr.has(name) ? data[name][fpr][s] : data[name][s]);

// --- The table ---

// Samples that are above equally many non-members are ordered by their scores.
const byScore = data.id.map((_, s) => s).sort((a, b) => (data.score[a] ?? -Infinity) - (data.score[b] ?? -Infinity));
const rank = [];
byScore.forEach((s, position) => (rank[s] = position / data.id.length));

const numberColumns = data.properties.map(({ name, title, decimals }) => ({
  title,
  type: "num",
  data: ({ s }) => valueOf(name, s) ?? -Infinity, // missing values are sorted below all others
  render: (value, type, { s }) => {
    if (type === "display") return format(value === -Infinity ? null : value, decimals);
    return type === "sort" && name === "above" ? 10 * value + rank[s] : value;
  },
}));
const columns = [
  {
    title: "Sample",
    type: "num",
    data: ({ s }) => data.id[s],
    render: (id, type) => (type === "display" ? element("a", id, { href: `#sample-${id}` }) : id),
    cellType: "th",
  },
  { title: "Member", data: ({ s }) => (data.member[s] ? "yes" : "no") },
  ...numberColumns,
  { title: "Chosen by", data: ({ s }) => data.chosen_by[s], visible: data.chosen_by.some((rule) => rule !== "all") },
  {
    title: "Text",
    className: "text",
    data: ({ s }) => data.text[s],
    render: (text, type) => (type === "display" ? element("span", text.slice(0, 120)) : text),
  },
];
const table = jQuery("#samples").DataTable({
  data: data.id.map((_, s) => ({ s })),
  columns,
  order: [[2, "desc"]],
  pageLength: 25,
  autoWidth: false,
  layout: { topStart: null, topEnd: null, bottomStart: null, bottomEnd: { paging: { type: "simple_numbers", buttons: 5 } } },
  language: { emptyTable: "There are no samples.", zeroRecords: "No sample satisfies the conditions." },
  createdRow: (row, { s }) => {
    row.dataset.sample = data.id[s];
  },
});

function readRanges() {
  const ranges = {};
  for (const input of document.querySelectorAll("input[data-property]")) {
    if (input.value === "") continue;
    ranges[input.dataset.property] ??= { low: -Infinity, high: Infinity };
    ranges[input.dataset.property][input.dataset.end] = Number(input.value);
  }
  return Object.entries(ranges);
}

function filterSamples() {
  const words = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const membership = byId("membership").value;
  const rule = byId("chosen")?.value ?? "";
  const ranges = readRanges();
  table.search.fixed("conditions", (_text, { s }) => {
    if (membership && String(data.member[s]) !== membership) return false;
    if (rule && data.chosen_by[s] !== rule) return false;
    const inRanges = ranges.every(([name, { low, high }]) => {
      const value = valueOf(name, s);
      return value !== null && low <= value && value <= high;
    });
    if (!inRanges) return false;
    const text = words.length ? data.text[s].toLowerCase() : "";
    return words.every((word) => text.includes(word));
  });
  table.draw();
  const count = table.rows({ search: "applied" }).count();
  byId("count").textContent = `${count.toLocaleString("en")} of ${data.id.length.toLocaleString("en")} samples`;
}

function selectFpr() {
  fpr = Number(byId("fpr").value);
  table.rows().invalidate();
}

byId("fpr")?.addEventListener("change", selectFpr);
for (const control of byId("filters").querySelectorAll("input, select")) {
  control.addEventListener(control.tagName === "SELECT" ? "change" : "input", filterSamples);
}
byId("filters").addEventListener("submit", (event) => event.preventDefault());
byId("filters").addEventListener("reset", () => {
  // The fields are empty after this event; the FPR stays, since it is no condition.
  setTimeout(() => {
    if (byId("fpr")) byId("fpr").value = fpr;
    filterSamples();
  });
});
byId("samples").addEventListener("click", (event) => {
  const row = event.target.closest("tr[data-sample]");
  if (row && !event.target.closest("a")) location.hash = `sample-${row.dataset.sample}`;
});

// --- The reader ---

function fillTable(id, titles, rows) {
  const head = element("tr");
  head.append(...titles.map((title) => element("th", title, { scope: "col" })));
  const body = rows.map((cells) => {
    const row = element("tr");
    row.append(...cells.map((cell, i) => element(i ? "td" : "th", cell, i ? { className: cell === "yes" ? "yes" : "" } : { scope: "row" })));
    return row;
  });
  const parts = [element("thead"), element("tbody")];
  parts[0].append(head);
  parts[1].append(...body);
  byId(id).replaceChildren(...parts);
}

const decisionWord = { 1: "yes", 0: "no", "-": "–" };
const IN = "IN references";
const OUT = "OUT references";
const embedOptions = { actions: false, renderer: "svg" };
const config = { font: "system-ui, sans-serif", axis: { labelFontSize: 12, titleFontSize: 12, titleFontWeight: "normal", labelLimit: 140 } };

const pieceText = (piece) => piece.replaceAll("▁", " ");

function drawTokens(tokens) {
  const values = tokens.piece.flatMap((piece, t) => [
    { position: t + 1, token: pieceText(piece), kind: IN, loss: tokens.in[t] },
    { position: t + 1, token: pieceText(piece), kind: OUT, loss: tokens.out[t] },
  ]);
  const specification = {
    description: "Mean loss of each token under IN and OUT references",
    data: { values: values.filter(({ loss }) => loss !== null) },
    width: Math.max(160, byId("token-losses").clientWidth - 70),
    height: 150,
    mark: { type: "line", point: { size: 18 }, strokeWidth: 1.2 },
    encoding: {
      x: { field: "position", type: "quantitative", title: "Position of the token", axis: { tickMinStep: 1 } },
      y: { field: "loss", type: "quantitative", title: "Loss (nats)" },
      color: { field: "kind", type: "nominal", scale: { domain: [IN, OUT], range: [data.colors.in, data.colors.out] }, legend: { orient: "top", title: null } },
      tooltip: [
        { field: "token", title: "Token" },
        { field: "kind", title: "Kind" },
        { field: "loss", title: "Loss", format: ".3f" },
      ],
    },
    config,
  };
  return window.vegaEmbed("#token-losses", specification, embedOptions);
}

/** Shows the further parts of a sample, below what the reader shows. */
async function showFurther(s) {
  const facts = data.properties.map(({ name, title, decimals }) => {
    const value = format(valueOf(name, s), decimals);
    return `${title}: ${value}${name === "votes" ? ` of ${data.trainings}` : ""}`;
  });
  if (data.fprs.length) facts.push(`${facts.pop()} (at ${data.fprs[fpr]} FPR)`);
  byId("properties").textContent = facts.join(" · ");
  if (byId("references")) fillModels(s);
  const tokens = data.token_losses[data.id[s]];
  if (byId("tokens")) byId("tokens").hidden = !tokens;
  if (tokens) {
    fillTable(
      "token-table",
      ["Token", "IN", "OUT", "OUT minus IN"],
      tokens.piece.map((piece, t) => [pieceText(piece), format(tokens.in[t], 3), format(tokens.out[t], 3), format(tokens.in[t] === null || tokens.out[t] === null ? null : tokens.out[t] - tokens.in[t], 3)]),
    );
    await drawTokens(tokens);
  }
  dialog.dataset.shown = `${data.id[s]} ${data.fprs[fpr] ?? ""}`; // for tests: the picture is drawn
}

/** Fills the tables of references and replicas. */
function fillModels(s) {
  fillTable(
    "references",
    ["Reference", "Trained on the sample", "Loss"],
    data.reference_models.map((model, m) => [model, data.reference_member[s][m] === "1" ? "yes" : "no", format(data.reference_loss_nats[s][m], 4)]),
  );
  fillTable(
    "decisions",
    ["Replica", "Loss", ...data.fprs],
    data.replica_models.map((model, b) => [model, format(data.replica_loss_nats[s][b], 4), ...data.decisions.map((decision) => decisionWord[decision[s][b]])]),
  );
}

const dialog = document.querySelector("dialog");
let view = []; // the samples that the arrow keys go through: those of the table, in its order
const inTable = () => table.rows({ search: "applied", order: "applied" }).data().toArray().map(({ s }) => s);

const references = (s, isMember) =>
  data.reference_loss_nats[s].filter((_, m) => (data.reference_member[s][m] === "1") === isMember);

/** Returns the losses of a sample; without replicas, only some samples have any. */
const lossesOf = (s) =>
  data.losses
    ? (data.losses[data.id[s]] ?? { in: [], out: [], model: [], called: "" })
    : { in: references(s, true), out: references(s, false), model: data.replica_loss_nats[s], called: data.decisions[fpr][s] };

const reader = sampleReader.readerOf(
  dialog,
  {
    noun: "Sample",
    noText: data.no_text,
    trainings: data.trainings,
    outTitle: data.out_title,
    lossNote: data.loss_note,
    scoreDecimals: 2,
  },
  {
    sample: (i) => {
      const losses = lossesOf(view[i]);
      return {
        id: data.id[view[i]],
        source: data.source[view[i]],
        text: data.text[view[i]],
        isMember: data.member[view[i]],
        score: data.score[view[i]],
        above: data.above[view[i]],
        votes: data.votes?.[fpr][view[i]] ?? null,
        inLosses: losses.in,
        outLosses: losses.out,
        modelLosses: losses.model,
        called: losses.called,
      };
    },
    count: () => view.length,
    shown: (i) => {
      history.replaceState(null, "", `#sample-${data.id[view[i]]}`);
      showFurther(view[i]);
    },
    focus: (i) => {
      history.replaceState(null, "", " "); // no sample is open
      const position = inTable().indexOf(view[i]);
      if (position < 0) return;
      table.page(Math.floor(position / table.page.len())).draw("page");
      document.querySelector(`#samples tr[data-sample="${data.id[view[i]]}"] a`)?.focus();
    },
  },
);

const positionOf = new Map(data.id.map((id, s) => [id, s]));

function followLink() {
  const match = /^#sample-(\d+)$/.exec(location.hash);
  if (!match || !positionOf.has(Number(match[1]))) return;
  const s = positionOf.get(Number(match[1]));
  view = inTable();
  if (!view.includes(s)) view = [s]; // the conditions leave it out
  reader.show(view.indexOf(s));
}

addEventListener("hashchange", followLink);
filterSamples();
followLink();
