"use strict";
(() => {
  const one = (selector, root = document) => root.querySelector(selector);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const { element, decimal, readerOf } = sampleReader;

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

    /** Returns the beginning of a text; the reader shows all of it. */
    const beginning = ({ text, shown }) =>
      shown < text.length ? `${text.slice(0, shown)} …` : text;

    const content = (kind, sample) => {
      if (kind === "text") return [element("span", {}, beginning(sample) || data.noText)];
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

  all("[data-samples]").forEach(fill);
})();
