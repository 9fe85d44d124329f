"""The page's style: light and dark, and six colours that people with any kind of colour vision tell apart.

They are Okabe and Ito's, darker or lighter where they would be hard to see; lines differ in their dashes, too.
"""

from __future__ import annotations

from typing import Final

STYLE: Final = """
:root { color-scheme: light dark; --page: #ffffff; --ink: #1b1f24; --soft: #57606a; --grid: #d8dee4; --card: #f6f8fa;
  --shade: rgb(0 0 0 / 22%);
  --c1: #0072b2; --c2: #d55e00; --c3: #00805d; --c4: #b5538c; --c5: #8a6d00; --c6: #24292f; --link: #0550ae; }
@media (prefers-color-scheme: dark) {
  :root { --page: #12161b; --ink: #e6e9ed; --soft: #a3adb8; --grid: #343c46; --card: #1b2129;
    --shade: rgb(0 0 0 / 75%);
    --c1: #56b4e9; --c2: #ff9147; --c3: #2fcb9c; --c4: #eb9cc9; --c5: #f0e442; --c6: #d5dbe1; --link: #79b8ff; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1080px; padding: 24px 20px 64px; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { font-size: 26px; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 19px; margin: 40px 0 8px; padding-top: 12px; border-top: 1px solid var(--grid); }
h3 { font-size: 16px; margin: 24px 0 6px; }
p { margin: 6px 0; max-width: 80ch; }
p.note, figcaption { color: var(--soft); font-size: 14px; }
a { color: var(--link); }
nav { margin: 10px 0 18px; display: flex; flex-wrap: wrap; gap: 4px 16px; }
dl.numbers { display: grid; grid-template-columns: repeat(4, 1fr); gap: 10px; margin: 16px 0; }
dl.numbers div { background: var(--card); border: 1px solid var(--grid); border-radius: 6px; padding: 8px 12px; }
dl.numbers dt { color: var(--soft); font-size: 13px; }
dl.numbers dd { margin: 0; font-size: 21px; font-variant-numeric: tabular-nums; }
dl.words dt { font-weight: 600; margin-top: 8px; }
dl.words dd { margin: 0 0 0 20px; max-width: 80ch; }
figure { margin: 16px 0; }
ul.glance { margin: 8px 0; padding-left: 20px; overflow-wrap: anywhere; }
ul.glance li { margin: 5px 0; }
.wide { overflow-x: auto; margin: 12px 0 20px; background:
  linear-gradient(to right, var(--page), var(--page)) left / 20px 100% no-repeat local,
  linear-gradient(to right, var(--page), var(--page)) right / 20px 100% no-repeat local,
  linear-gradient(to right, var(--shade), transparent) left / 10px 100% no-repeat scroll,
  linear-gradient(to left, var(--shade), transparent) right / 10px 100% no-repeat scroll; }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--soft); padding: 4px 0; position: sticky; left: 0;
  max-width: min(1040px, 100vw - 28px); }
th, td { text-align: left; padding: 5px 12px 5px 0; border-bottom: 1px solid var(--grid); vertical-align: top; }
th { font-weight: 600; vertical-align: bottom; }
th.n, td.n { text-align: right; }
th.n { max-width: 110px; }
td.n, td.time { white-space: nowrap; }
td.name { min-width: 150px; max-width: 320px; overflow-wrap: anywhere; }
td.word { max-width: 240px; overflow-wrap: break-word; }
ul.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 4px 20px; margin: 4px 0; padding: 0;
  font-size: 14px; }
ul.legend li { display: flex; align-items: baseline; overflow-wrap: anywhere; }
svg.plot { display: block; width: 100%; min-width: 720px; height: auto; }
svg.plot text { fill: var(--ink); font-size: 13px; }
svg.plot text.title { font-size: 15px; font-weight: 600; }
svg.plot text.unit { fill: var(--soft); }
svg.swatch { flex: none; width: 30px; height: 12px; margin-right: 6px; vertical-align: middle; }
.axis { stroke: var(--soft); stroke-width: 1; }
.grid { stroke: var(--grid); stroke-width: 1; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.line circle { stroke: none; }
.line.c1 { stroke: var(--c1); } .line.c1 circle, .bar.c1 { fill: var(--c1); }
.line.c2 { stroke: var(--c2); } .line.c2 circle, .bar.c2 { fill: var(--c2); }
.line.c3 { stroke: var(--c3); } .line.c3 circle, .bar.c3 { fill: var(--c3); }
.line.c4 { stroke: var(--c4); } .line.c4 circle, .bar.c4 { fill: var(--c4); }
.line.c5 { stroke: var(--c5); } .line.c5 circle, .bar.c5 { fill: var(--c5); }
.line.c6 { stroke: var(--c6); } .line.c6 circle, .bar.c6 { fill: var(--c6); }
.line.c2 { stroke-dasharray: 9 3; } .line.c3 { stroke-dasharray: 3 3; } .line.c4 { stroke-dasharray: 12 3 3 3; }
.line.c5 { stroke-dasharray: 6 6; } .line.c6 { stroke-dasharray: 1 4; stroke-linecap: round; stroke-width: 3; }
.bar.open { fill-opacity: 0.45; }
.gone { fill: var(--soft); fill-opacity: 0.22; }
.gap { border-left: 4px solid var(--c2); background: var(--card); padding: 8px 14px; margin: 12px 0; }
.gap p, .gap li { max-width: 90ch; } .gap ul { margin: 6px 0; padding-left: 20px; }
code { font-size: 13px; overflow-wrap: anywhere; }
form.filter { display: flex; flex-wrap: wrap; align-items: end; gap: 8px 18px; margin: 10px 0; font-size: 14px; }
form.filter[hidden] { display: none; }
form.filter input[type="search"], form.filter select { font: inherit; padding: 3px 6px; min-height: 30px;
  color: inherit; background: var(--card); border: 1px solid var(--soft); border-radius: 4px; }
tr:target { background: var(--card); outline: 2px solid var(--c1); outline-offset: -2px; }
tr[hidden] { display: none; }
@media screen and (max-width: 760px) {
  body { padding: 16px 14px 48px; } dl.numbers { grid-template-columns: 1fr 1fr; }
}
@media print {
  body { max-width: none; padding: 0; font-size: 12px; }
  table { font-size: 10px; } th, td { padding-right: 8px; } td.name { min-width: 90px; }
  svg.plot { min-width: 0; } .wide { background: none; } nav, form.filter { display: none; }
  h2, h3, caption { break-after: avoid; } figure, tr, dl.numbers div, dl.words div { break-inside: avoid; }
}
"""
