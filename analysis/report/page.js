"use strict";
(() => {
  const one = (selector, root = document) => root.querySelector(selector);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

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

  /** Opens the folded part that the address leads to. */
  const openTarget = () => {
    const target = document.getElementById(location.hash.slice(1));
    for (let part = target; part; part = part.parentElement) {
      if (part.matches("details")) part.open = true;
    }
    if (target && target.matches("details")) target.scrollIntoView();
  };
  addEventListener("hashchange", openTarget);
  openTarget();

  /** Fills a table of samples, which has its first rows already, and lets its reader open them. */
  const fill = (box) => {
    const data = JSON.parse(one("script", box).textContent);
    const samples = data.samples.map((values) =>
      Object.fromEntries(data.fields.map((field, i) => [field, values[i]])),
    );
    const body = one("tbody", box);
    const more = one("button.more", box);
    const status = one("[role=status]", box);
    let filter = 0;
    let sort = "score";
    let descending = true;
    let rows = data.rows;
    let view = [];

    const bar = (share) =>
      element(
        "svg:svg",
        { class: "share", width: 50, height: 12, "aria-hidden": "true" },
        element("svg:rect", { x: 0.5, y: 1.5, width: 49, height: 9, class: "empty" }),
        element("svg:rect", { y: 1, width: 50 * share, height: 10, class: "member" }),
      );

    const content = (kind, sample) => {
      if (kind === "text") return [element("span", {}, sample.text || data.noText)];
      if (kind === "score") return [decimal(sample.score, data.scoreDecimals)];
      if (kind === "above") return [sample.above === 100 ? "all" : decimal(sample.above, 1)];
      if (kind === "label") return [sample.label || "–"];
      if (kind === "member") return [sample.isMember ? "member" : "not a member"];
      if (sample.votes === null) return ["–"];
      const verdict = data.verdicts[sample.verdict];
      const text = `${sample.votes} of ${data.trainings}`;
      const small = verdict ? [" ", element("small", {}, verdict)] : [];
      return [bar(sample.votes / data.trainings), text, ...small];
    };

    /** Returns a path that may break after each slash. */
    const source = (path) =>
      element(
        "span",
        { class: "source" },
        ...path.split("/").flatMap((part, i) => (i ? ["/", element("wbr"), part] : [part])),
      );

    const row = (sample, i) => {
      const button = element("button", { class: "open", type: "button" }, sample.id);
      button.addEventListener("click", () => reader.show(i));
      const cells = data.columns.map(({ kind, card }) => {
        const label = card ? { "data-label": card } : {};
        return element("td", { class: kind, ...label }, ...content(kind, sample));
      });
      const head = element("th", { scope: "row" }, button);
      if (sample.source) head.append(source(sample.source));
      return element("tr", {}, head, ...cells);
    };

    const compare = (a, b) => {
      const [x, y] = [a[sort], b[sort]];
      if (x === y) return 0;
      if (x === null || y === null) return x === null ? 1 : -1;
      return descending ? y - x : x - y;
    };

    const draw = () => {
      view = samples.filter((sample) => sample.filters.includes(filter)).sort(compare);
      body.replaceChildren(...view.slice(0, rows).map(row));
      const total = data.filters[filter].total;
      const count = (number) => number.toLocaleString("en");
      status.textContent = `${count(Math.min(rows, view.length))} of ${count(total)} shown`;
      if (view.length < total) {
        status.textContent += ` (this page has ${count(view.length)}; the table of all samples has the rest)`;
      }
      more.hidden = rows >= view.length;
      more.textContent = `Show ${Math.min(25, view.length - rows)} more`;
      for (const head of all("th[data-sort]", box)) {
        const order = descending ? "descending" : "ascending";
        head.setAttribute("aria-sort", head.dataset.sort === sort ? order : "none");
      }
      for (const button of all("[data-filter]", box)) {
        const chosen = button.dataset.filter === data.filters[filter].key;
        button.setAttribute("aria-pressed", String(chosen));
      }
    };

    const reader = readerOf(one("dialog", box), data, {
      sample: (i) => view[i],
      count: () => Math.min(rows, view.length),
      focus: (i) => all("button.open", body)[i]?.focus(),
    });

    more.addEventListener("click", () => {
      const first = rows;
      rows += 25;
      draw();
      all("button.open", body)[first]?.focus();
    });
    for (const head of all("th[data-sort]", box)) {
      const button = element("button", { type: "button" }, ...head.childNodes);
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        descending = sort === head.dataset.sort ? !descending : true;
        sort = head.dataset.sort;
        draw();
      });
    }
    one(".choices", box).hidden = false;
    for (const button of all("[data-filter]", box)) {
      button.addEventListener("click", () => {
        filter = data.filters.findIndex(({ key }) => key === button.dataset.filter);
        [sort, descending, rows] = ["score", true, data.rows];
        draw();
      });
    }
    draw();
  };

  /** Returns the reader of single samples; rows gives the samples that are shown in the table, and takes the focus back. */
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

  all("[data-samples]").forEach(fill);
})();
