"use strict";
(() => {
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  // A finger on a curve scrolls the page; a timeline moves under it.
  const touch = matchMedia("(pointer: coarse)").matches;
  const drawn = new Map();
  // A page that refreshes itself stays as its reader left it. A browser may keep nothing for a file.
  const place = `colonnade report ${location.pathname}`;
  function recalled() {
    try { return JSON.parse(sessionStorage.getItem(place)) || {}; } catch { return {}; }
  }
  const left = { chosen: null, inTime: false, paused: false, open: [], charts: {}, ...recalled() };
  let { chosen, inTime, paused } = left, printing = false;

  const dark = () => !printing && (chosen ? chosen === "dark" : system.matches);
  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  function theme() { root.dataset.theme = dark() ? "dark" : "light"; }

  function looks() {
    const axis = { gridcolor: colour("--grid"), linecolor: colour("--line"), zeroline: false, color: colour("--soft") };
    return {
      font: { family: getComputedStyle(document.body).fontFamily, size: 12.5, color: colour("--ink") },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, traceorder: "normal", font: { color: colour("--soft") } },
      hoverlabel: { bgcolor: colour("--card"), bordercolor: colour("--soft"), font: { color: colour("--ink") } },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("--soft"), activecolor: colour("--ink") },
      xaxis: axis, yaxis: { ...axis, automargin: true },
    };
  }

  function merged(base, more) {
    const result = { ...base };
    for (const [key, value] of Object.entries(more)) {
      const both = value && typeof value === "object" && !Array.isArray(value) && result[key] && typeof result[key] === "object";
      result[key] = both ? merged(result[key], value) : value;
    }
    return result;
  }

  // A sheet of paper is 700 pixels wide.
  const paper = (element) => Math.min(640, element.clientWidth || 640);

  // A legend takes half of a chart at most, and is a list where that is narrow.
  function stretch(element, { layout: { height = 330 }, traces, timeline }) {
    const list = element.clientWidth < 480 && height < 330 && !timeline ? 60 * Math.max(0, traces.length - 5) : 0;
    element.style.height = `${height + list}px`;
  }

  function layout(chart, element) {
    const own = { autosize: true, margin: { l: 58, r: 14, t: 34, b: 46 }, hovermode: "x unified", dragmode: touch ? false : "zoom" };
    if (chart.curve) own.xaxis = { title: { text: inTime ? "seconds" : "step" } };
    if (chart.timeline) { own.margin.l = 74; own.dragmode = "pan"; own.margin.t = 44; }
    if (printing) own.width = paper(element);
    const { height, ...rest } = chart.layout; // that of the element, which Plotly asks for
    return merged(merged(looks(), own), rest);
  }

  function traces(chart) {
    return chart.traces.map(({ times, ...trace }) => (inTime && times ? { ...trace, x: times } : trace));
  }

  // Not its number: a chart may have come before it meanwhile.
  const named = (element) => `${element.closest("details.run")?.id ?? ""} ${element.getAttribute("aria-label")}`;
  const card = (element) => element.closest(".card");

  function draw(element) {
    const chart = charts[element.dataset.chart];
    const was = left.charts[named(element)] ?? {};
    if (was.log) press(element, true);
    stretch(element, chart);
    const now = layout(chart, element), lines = traces(chart);
    for (const axis of ["xaxis", "yaxis"])
      if (was[axis]) now[axis] = { ...now[axis], range: was[axis], autorange: false };
    for (const line of lines) if (was.visible && line.name in was.visible) line.visible = was.visible[line.name];
    // Nothing of a page leaves it: without the button that sends a chart to Plotly's cloud.
    const config = { responsive: true, displaylogo: false, scrollZoom: Boolean(chart.timeline), showSendToCloud: false,
      plotlyServerURL: "", displayModeBar: touch ? false : "hover", modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] };
    const done = Plotly.newPlot(element, lines, now, config);
    drawn.set(element, chart);
    return done;
  }

  const visible = (element) => !element.closest("details:not([open])");

  // A browser tells by this mark how long a reader waited for what is seen first.
  function firstView() {
    if (!performance.getEntriesByName("first view").length) performance.mark("first view");
  }

  // One at a time, so that the page can be scrolled meanwhile.
  async function drawAll() {
    for (const element of document.querySelectorAll(".chart")) {
      if (!drawn.has(element) && visible(element)) {
        if (element.getBoundingClientRect().top > innerHeight) firstView();
        await draw(element);
        await new Promise((resume) => setTimeout(resume));
      }
    }
    firstView();
    performance.mark("all drawn");
    root.dataset.drawn = String(drawn.size);
  }

  function recolour() {
    theme();
    for (const [element, chart] of drawn) {
      const now = layout(chart, element);
      const change = {};
      for (const key of ["font", "legend", "hoverlabel", "modebar"]) change[key] = now[key];
      for (const axis of ["xaxis", "yaxis"])
        for (const part of ["gridcolor", "linecolor", "color"]) change[`${axis}.${part}`] = now[axis][part];
      Plotly.relayout(element, change);
    }
  }

  function press(element, log) {
    card(element).querySelector("[data-act=log]").setAttribute("aria-pressed", String(log));
    const chart = charts[element.dataset.chart];
    chart.layout = merged(chart.layout, { yaxis: { type: log ? "log" : "linear" } });
  }

  function nameTime() {
    for (const button of document.querySelectorAll("[data-act=time]")) {
      button.setAttribute("aria-pressed", String(inTime));
      button.textContent = inTime ? "over time" : "over steps";
    }
  }

  addEventListener("pagehide", () => {
    for (const [element, chart] of drawn) {
      const kept = { visible: {} };
      for (const axis of ["xaxis", "yaxis"]) {
        const { range, autorange } = element._fullLayout[axis];
        const first = JSON.stringify(axis === "xaxis" ? spans[element.dataset.chart] : chart.layout.yaxis?.range);
        if (!autorange && JSON.stringify(range) !== first) kept[axis] = range;
      }
      kept.log = chart.layout.yaxis?.type === "log";
      for (const { name, visible } of element.data) if (visible !== undefined) kept.visible[name] = visible;
      left.charts[named(element)] = kept;
    }
    const open = [...document.querySelectorAll("details.run[open]")].map((details) => details.id);
    try { sessionStorage.setItem(place, JSON.stringify({ ...left, chosen, inTime, paused, open })); } catch { /* full, or forbidden */ }
  });

  theme();
  nameTime();
  for (const details of document.querySelectorAll("details.run")) details.open = left.open.includes(details.id);
  system.addEventListener("change", recolour);
  document.querySelector("[data-act=theme]").addEventListener("click", () => {
    chosen = dark() ? "light" : "dark";
    recolour();
  });

  for (const button of document.querySelectorAll("[data-act=time]")) {
    button.addEventListener("click", () => {
      inTime = !inTime;
      nameTime();
      for (const [element, chart] of drawn) if (chart.curve) Plotly.react(element, traces(chart), layout(chart, element));
    });
  }

  for (const button of document.querySelectorAll("[data-act=log]")) {
    button.addEventListener("click", () => {
      const element = card(button).querySelector(".chart");
      const log = button.getAttribute("aria-pressed") !== "true";
      press(element, log);
      Plotly.relayout(element, { "yaxis.type": log ? "log" : "linear", "yaxis.autorange": true });
    });
  }

  // Fingers have no wheel. A range stays inside of the timeline, also after it was dragged out of sight.
  const spans = charts.map((chart) => (chart.timeline ? [...chart.layout.xaxis.range] : null));
  function zoomed([first, last], [from, to], factor) {
    const wide = Math.min(last - first, Math.abs(to - from) * factor);
    const start = Math.max(first, Math.min(last - wide, (from + to) / 2 - wide / 2));
    return [start, start + wide];
  }
  for (const button of document.querySelectorAll("[data-zoom]")) {
    button.addEventListener("click", () => {
      const element = card(button).querySelector(".chart");
      const whole = spans[element.dataset.chart], factor = Number(button.dataset.zoom);
      const range = factor ? zoomed(whole, element.layout.xaxis.range, factor) : [...whole];
      Plotly.relayout(element, { "xaxis.range": range });
    });
  }

  for (const details of document.querySelectorAll("details.run")) {
    details.addEventListener("toggle", () => {
      // What was drawn for paper, or before the window had another size.
      if (details.open && !printing)
        for (const [element, chart] of drawn)
          if (details.contains(element)) { stretch(element, chart); Plotly.Plots.resize(element); }
      drawAll();
    });
  }

  // Before Plotly, which waits until a window has its size.
  addEventListener("resize", () => { for (const [element, chart] of drawn) if (visible(element)) stretch(element, chart); });

  // A sheet of paper is light, and nothing is folded on it. Who prints does not wait for promises; Plotly keeps
  // none of them open for a chart of this page.
  const unfolded = new Set();
  addEventListener("beforeprint", () => {
    printing = true;
    for (const details of document.querySelectorAll("details.run:not([open])")) {
      details.open = true;
      unfolded.add(details);
    }
    recolour();
    for (const element of drawn.keys()) Plotly.relayout(element, { width: paper(element) });
    for (const element of document.querySelectorAll(".chart")) if (!drawn.has(element)) draw(element);
    root.dataset.drawn = String(drawn.size);
  });
  addEventListener("afterprint", () => {
    printing = false;
    recolour();
    for (const element of drawn.keys()) Plotly.relayout(element, { width: null, autosize: true });
    for (const details of unfolded) details.open = false;
    unfolded.clear();
  });

  // A page of a run that goes on is made again every few seconds (--watch), and looks at itself as often.
  const seconds = Number(root.dataset.refresh);
  if (seconds > 0) {
    const button = document.querySelector("[data-act=refresh]");
    const name = () => { button.textContent = paused ? "refresh is off" : `refreshes every ${seconds} s`; };
    button.hidden = false;
    name();
    button.addEventListener("click", () => { paused = !paused; name(); });
    setInterval(() => { if (!paused && !printing) location.reload(); }, seconds * 1000);
  }

  drawAll();
})();
