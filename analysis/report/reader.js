"use strict";
/** The reader of single samples, which all pages with samples share, and what they need to write parts of a page. */
const sampleReader = (() => {
  const one = (selector, root = document) => root.querySelector(selector);

  /** Returns a new element with attributes and content; names of SVG elements start with "svg:". */
  const element = (name, attributes = {}, ...content) => {
    const svg = name.startsWith("svg:");
    const node = svg
      ? document.createElementNS("http://www.w3.org/2000/svg", name.slice(4))
      : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...content);
    return node;
  };

  /** Formats a number, or a dash if it is missing. */
  const decimal = (value, digits) =>
    value === null ? "–" : value.toFixed(digits).replace("-", "−");

  /** Returns the reader of single samples; rows gives the samples that can be read, takes the
   * focus back, and may be told which one is shown. */
  const readerOf = (dialog, data, rows) => {
    const [previous, next] = [one(".previous", dialog), one(".next", dialog)];
    let at = 0;

    const facts = (sample) => {
      const above = sample.above === 100 ? "all" : `${decimal(sample.above, 1)} % of the`;
      const parts = [sample.isMember ? "Member" : "Not a member"];
      if (sample.source) parts.push(sample.source);
      parts.push(`score ${decimal(sample.score, data.scoreDecimals)}, higher than ${above} non-members`);
      if (sample.votes !== null && data.trainings > 1) {
        parts.push(`found in ${sample.votes} of ${data.trainings} trainings`);
      }
      return `${parts.join(" · ")}.`;
    };

    const show = (i) => {
      at = i;
      const sample = rows.sample(i);
      one("h3", dialog).textContent = `${data.noun} ${sample.id}`;
      one("p.facts", dialog).textContent = facts(sample);
      const text = one("blockquote", dialog);
      text.textContent = sample.text || data.noText;
      text.scrollTop = 0;
      const strips = losses(data, sample);
      const note = element("p", { class: "note" }, data.lossNote);
      one(".losses", dialog).replaceChildren(...(strips ? [note, strips] : []));
      // A disabled button would lose the focus, and with it the arrow keys.
      previous.setAttribute("aria-disabled", String(i === 0));
      next.setAttribute("aria-disabled", String(i === rows.count() - 1));
      if (!dialog.open) dialog.showModal();
      rows.shown?.(i);
    };

    const move = (step) => {
      if (at + step >= 0 && at + step < rows.count()) show(at + step);
    };
    previous.addEventListener("click", () => move(-1));
    next.addEventListener("click", () => move(1));
    one(".close", dialog).addEventListener("click", () => dialog.close());
    dialog.addEventListener("keydown", (event) => {
      if (event.key === "ArrowLeft") move(-1);
      if (event.key === "ArrowRight") move(1);
    });
    dialog.addEventListener("close", () => rows.focus(at));
    return { show };
  };

  /** Draws the losses of a sample, one line for each kind of model; nothing if none are known. */
  const losses = (data, sample) => {
    const model = data.trainings > 1 ? `This model, ${data.trainings} trainings` : "This model";
    const strips = [
      { name: "References with this text", values: sample.inLosses, kind: "member" },
      { name: data.outTitle, values: sample.outLosses, kind: "nonmember" },
      { name: model, values: sample.modelLosses, kind: "model" },
    ].map((strip) => ({ ...strip, known: strip.values.filter((value) => value !== null) }));
    const shown = strips.filter(({ known }) => known.length);
    if (!shown.length) return null;
    const everything = shown.flatMap(({ known }) => known);
    const [low, high] = [Math.min(...everything), Math.max(...everything)];
    const narrow = innerWidth < 820;
    const [width, left, height, first] = narrow ? [320, 8, 44, 30] : [760, 202, 30, 16];
    const x = (value) => left + ((value - low) / (high - low || 1)) * (width - left - 12);
    const median = (values) => {
      const sorted = [...values].sort((a, b) => a - b);
      return (sorted[(sorted.length - 1) >> 1] + sorted[sorted.length >> 1]) / 2;
    };
    const medians = shown.map(({ name, known }) => `${name}: median ${median(known).toFixed(2)}`);
    const bottom = shown.length * height + 24;
    const chart = element("svg:svg", {
      class: "chart",
      viewBox: `0 0 ${width} ${bottom + 6}`,
      width,
      height: bottom + 6,
      role: "img",
      "aria-label": `Losses of this text. ${medians.join(". ")}.`,
    });
    shown.forEach(({ name, values, kind }, k) => {
      const y = k * height + first;
      const strong = kind === "model" ? "strong" : "";
      chart.append(
        element("svg:text", { x: 0, y: narrow ? y - 14 : y + 4.5, class: strong }, name),
        element("svg:line", { x1: x(low), x2: x(high), y1: y, y2: y, class: "grid" }),
      );
      values.forEach((value, i) => {
        if (value === null) return;
        const open = sample.called[i] === "0" ? " open" : "";
        chart.append(
          element("svg:circle", {
            cx: x(value),
            cy: y,
            r: 4.5,
            class: kind === "model" ? `dot lira${open}` : kind,
            "fill-opacity": kind === "model" ? 1 : 0.6,
          }),
        );
      });
    });
    const end = { x: x(high), y: bottom, class: "muted", "text-anchor": "end" };
    if (high > low) chart.append(element("svg:text", { x: x(low), y: bottom, class: "muted" }, low.toFixed(2)));
    chart.append(element("svg:text", high > low ? end : { ...end, "text-anchor": "start" }, `${high.toFixed(2)} nats per token`));
    return chart;
  };

  return { element, decimal, readerOf };
})();
