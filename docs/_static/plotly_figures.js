"use strict";
const figures = [...document.querySelectorAll(".plotly-figure")];

function readColors() {
  const { color, backgroundColor } = getComputedStyle(document.body);
  return { "font.color": color, "hoverlabel.bgcolor": backgroundColor, "hoverlabel.font.color": color };
}

for (const figure of figures) {
  const { data, layout } = JSON.parse(figure.firstElementChild.textContent);
  figure.replaceChildren();
  Plotly.newPlot(figure, data, layout, { responsive: true, displaylogo: false }).then(() => Plotly.relayout(figure, readColors()));
}

const paint = () => figures.forEach((figure) => Plotly.relayout(figure, readColors()));
new MutationObserver(paint).observe(document.body, { attributeFilter: ["data-theme"] });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
