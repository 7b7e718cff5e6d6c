"""How the pages look: one style sheet, for light and dark, wide and narrow."""

from __future__ import annotations

from typing import Final

STYLE: Final = """
:root {
  color-scheme: light dark;
  --paper: #fbfbfa; --card: #ffffff; --ink: #1c2126; --soft: #5c6670; --line: #e3e5e8;
  --base: #9aa3ab;
  --c1: #1f77b4; --c2: #2a9d8f; --c3: #b9770e; --c4: #c0392b; --c5: #7d4fb3; --good: #2a9d8f;
  --mark: #fff4d6;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14171a; --card: #1b1f23; --ink: #e6e9ec; --soft: #9aa5af; --line: #2c3238;
  --base: #66707a;
    --c1: #64b0ea; --c2: #4fc7b6; --c3: #e9b14c; --c4: #f0796d; --c5: #b693e6; --good: #4fc7b6;
  --mark: #3a3115;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans",
  sans-serif; }
main { max-width: 1240px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 4px; letter-spacing: -0.01em; }
h2 { font-size: 1.25rem; margin: 44px 0 4px; letter-spacing: -0.005em; }
h3 { font-size: 1rem; margin: 0 0 8px; line-height: 1.35; }
p { margin: 4px 0 12px; max-width: 75ch; }
.sub, figcaption, .note { color: var(--soft); }
a { color: var(--c1); text-decoration-thickness: 1px; text-underline-offset: 2px; }
nav { display: flex; flex-wrap: wrap; gap: 4px 16px; margin: 14px 0 0; font-size: .9rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(128px, 1fr)); gap: 12px;
  margin: 20px 0 8px;
  padding: 0; list-style: none; }
.tiles li { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 12px 14px; }
.tiles b { display: block; font-size: 1.35rem; line-height: 1.25; font-weight: 650;
  font-variant-numeric: tabular-nums; }
.tiles span { color: var(--soft); font-size: .85rem; }
.grid2 { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 16px; }
figure, .card { background: var(--card); border: 1px solid var(--line); border-radius: 12px;
  margin: 0;
  padding: 16px 18px 14px; min-width: 0; }
figcaption { font-size: .85rem; margin-top: 8px; line-height: 1.45; }
.wide { grid-column: 1 / -1; }
svg { display: block; width: 100%; height: auto; overflow: visible; }
svg text { font-size: 13px; fill: var(--ink); font-variant-numeric: tabular-nums; }
svg .mark { fill: var(--soft); }
svg .axis { fill: var(--soft); font-size: 12.5px; }
svg .grid { stroke: var(--line); fill: none; }
svg .base { stroke: var(--base); fill: none; }
svg .rule { stroke: var(--soft); stroke-dasharray: 3 4; fill: none; }
svg .line { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
svg .dashed { stroke-dasharray: 6 5; }
svg .span { stroke: var(--line); stroke-width: 6; stroke-linecap: round; fill: none; }
svg .band { opacity: .22; stroke: none; }
.c1 { --c: var(--c1); } .c2 { --c: var(--c2); } .c3 { --c: var(--c3); } .c4 { --c: var(--c4); }
.c5 { --c: var(--c5); } .c6 { --c: var(--base); }
svg .line { stroke: var(--c); }
svg .dot, svg .bar, svg .band { fill: var(--c); }
.legend { display: flex; flex-wrap: wrap; gap: 2px 16px; list-style: none; margin: 8px 0 0;
  padding: 0;
  font-size: .85rem; }
.key { display: inline-block; width: 18px; height: 0; border-top: 3px solid var(--c);
  border-radius: 2px;
  vertical-align: .28em; margin-right: 7px; }
.key.dashed { border-top-style: dashed; }
details { margin-top: 10px; font-size: .875rem; }
summary { cursor: pointer; color: var(--soft); }
.scroll { overflow: auto; max-height: 420px; margin-top: 8px; border-top: 1px solid var(--line); }
.scroll.whole { max-height: none; border-top: 0; margin-top: 0; }
.scroll:focus-visible { outline: 2px solid var(--c1); }
table { border-collapse: collapse; width: 100%; font-size: .875rem;
  font-variant-numeric: tabular-nums; }
th, td { padding: 5px 10px; text-align: right; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th { color: var(--soft); font-weight: 600; position: sticky; top: 0; background: var(--card); }
th.t, td.t { text-align: left; }
tr.pick td { background: var(--mark); font-weight: 600; }
.advice { border-left: 4px solid var(--good); }
.advice ul { margin: 6px 0 4px; padding-left: 20px; }
.advice li { margin: 5px 0; max-width: 90ch; }
.note { border-left: 4px solid var(--c3); padding: 2px 0 2px 14px; margin: 10px 0;
  max-width: 90ch; }
dl { max-width: 90ch; } dt { font-weight: 650; margin-top: 12px; } dd { margin: 2px 0 0; }
dt:target { background: var(--mark); }
@media (max-width: 860px) {
  main { padding: 20px 12px 40px; }
  .grid2 { grid-template-columns: minmax(0, 1fr); }
  .tiles { grid-template-columns: repeat(2, minmax(0, 1fr)); }
  .tiles b { font-size: 1.15rem; }
  figure, .card { padding: 12px 12px 10px; }
  svg text { font-size: 16px; } svg .axis { font-size: 15px; }
}
@media print { .scroll { max-height: none; } body { background: #fff; } }
"""
