"use strict";
const dark = matchMedia("(prefers-color-scheme: dark)");
const unpacked = new Map();

async function inflate(id) {
  const text = atob(document.getElementById(id).textContent);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; ++i) bytes[i] = text.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

function unpack(id, read) {
  if (!unpacked.has(id)) unpacked.set(id, inflate(id).then(read));
  return unpacked.get(id);
}

function loadPlotly() {
  return unpack("plotly", (text) => {
    const script = document.createElement("script");
    script.textContent = text;
    document.head.append(script);
  });
}

function readColors(isDark) {
  const ink = isDark ? "#d5dae0" : "#3a3f47";
  return { "font.color": ink, "hoverlabel.bgcolor": isDark ? "#262b31" : "#ffffff", "hoverlabel.font.color": ink };
}

function setColors(layout, isDark) {
  const colors = readColors(isDark);
  layout.font.color = colors["font.color"];
  layout.hoverlabel = { ...layout.hoverlabel, bgcolor: colors["hoverlabel.bgcolor"], font: { color: colors["font.color"] } };
  return layout;
}

async function drawPicture(figure, run) {
  const [figures] = await Promise.all([unpack(`pictures-${run}`, JSON.parse), loadPlotly()]);
  const { data, layout } = figures[figure.dataset.picture];
  const name = `${document.title} ${figure.dataset.picture}`.replace(/[^\w.-]+/g, "_");
  figure.style.height = `${layout.height}px`;
  const config = { responsive: true, displaylogo: false, toImageButtonOptions: { format: "svg", filename: name } };
  await Plotly.newPlot(figure, data, setColors(layout, dark.matches), config);
}

function fillCode(kernel, texts, drawings) {
  const steps = new Map([...kernel.querySelectorAll(".steps li")].map((li) => [li.dataset.step, li]));
  const paint = (node, step) => {
    node.dataset.step = step;
    node.style.borderLeftColor = `hsl(${(step * 137) % 360} 55% 55%)`;
  };
  for (const [step, li] of steps) if (step !== "0") paint(li, step);
  kernel.querySelector(".program pre").textContent = texts.program;
  const machine = kernel.querySelector(".machine pre");
  if (machine) machine.textContent = texts.machine_code;
  const lines = texts.cuda.split("\n").map((text, number) => {
    const line = document.createElement("div");
    const label = document.createElement("i");
    const code = document.createElement("code");
    const step = texts.step_by_line[number];
    if (step) paint(line, step);
    label.textContent = step || "";
    if (step) label.title = steps.get(String(step)).textContent.trim();
    code.textContent = text;
    line.append(label, code);
    return line;
  });
  kernel.querySelector(".cuda .code").replaceChildren(...lines);
  const drawing = kernel.querySelector(".drawing");
  if (drawing) drawing.innerHTML = drawings[kernel.dataset.kernel];
  const mark = (event) => {
    const step = event.type === "mouseover" ? event.target.closest("[data-step]")?.dataset.step : undefined;
    for (const node of kernel.querySelectorAll("[data-step]"))
      node.classList.toggle("marked", step !== undefined && step !== "0" && node.dataset.step === step);
  };
  kernel.addEventListener("mouseover", mark);
  kernel.addEventListener("mouseout", mark);
}

async function fillRun(section) {
  if (section.dataset.filled) return;
  section.dataset.filled = "yes";
  const run = section.dataset.run;
  for (const figure of section.querySelectorAll(".picture")) {
    await drawPicture(figure, run);
    await new Promise((resolve) => setTimeout(resolve)); // the page can be read and scrolled meanwhile
  }
  const kernels = [...section.querySelectorAll(".kernel")];
  if (kernels.length) {
    const texts = await unpack(`code-${run}`, JSON.parse);
    const drawings = section.querySelector(".drawing") ? await unpack(`drawings-${run}`, JSON.parse) : [];
    for (const kernel of kernels) fillCode(kernel, texts[kernel.dataset.kernel], drawings);
  }
  section.dataset.filled = "done";
}

async function start() {
  if (typeof DecompressionStream === "undefined")
    throw new Error("this browser cannot unpack pictures and code; they need Chromium 80, Firefox 113 or Safari 16.4");
  for (const section of document.querySelectorAll(".run")) {
    if (section.tagName === "DETAILS") section.addEventListener("toggle", () => section.open && fillRun(section).catch(report));
    else await fillRun(section);
  }
}

function openTarget() {
  const target = location.hash && document.querySelector(`details${location.hash}`);
  if (target) target.open = true;
}

function report(problem) {
  const line = document.getElementById("problem");
  line.textContent = `The report is incomplete: ${problem.message}`;
  line.hidden = false;
}

dark.addEventListener("change", () => {
  for (const figure of document.querySelectorAll(".picture.js-plotly-plot")) Plotly.relayout(figure, readColors(dark.matches));
});
addEventListener("beforeprint", () => {
  for (const figure of document.querySelectorAll(".picture.js-plotly-plot")) Plotly.relayout(figure, readColors(false));
});
addEventListener("afterprint", () => {
  for (const figure of document.querySelectorAll(".picture.js-plotly-plot")) Plotly.relayout(figure, readColors(dark.matches));
});
addEventListener("hashchange", openTarget);
openTarget();
start().catch(report);
