"""The style of the page: the reader's own fonts, light and dark, narrow screens, paper."""

STYLE = """
:root { color-scheme: light dark; --ink: #1b2430; --soft: #56616f; --paper: #ffffff; --card: #f5f7fa; --line: #d9dfe7;
  --grid: #e6eaf0; --good: #00704f; --open: #8a5a00; --bad: #b3410a; --band: #8c98a8; --accent: #0072b2;
  --c0: #0072b2; --c1: #d55e00; --c2: #009e73; --c3: #b7568c; --c4: #3a9bd6; --c5: #b57c00; }
@media screen and (prefers-color-scheme: dark) {
  :root { --ink: #e6ebf1; --soft: #a3aebb; --paper: #12161b; --card: #1a2027; --line: #333d49; --grid: #28313b;
    --good: #4cc79d; --open: #e9b949; --bad: #ff9157; --band: #7f8b9a; --accent: #5cb6ec;
    --c0: #5cb6ec; --c1: #ff8a4a; --c2: #35c796; --c3: #e79cc6; --c4: #9bd3f5; --c5: #e9b949; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 47rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
header p { margin: 0; color: var(--soft); font-size: .9rem; }
time { white-space: nowrap; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: .25rem 0 1.25rem; letter-spacing: -.01em; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; line-height: 1.3; margin: 0 0 .5rem; }
h3 { font-size: 1rem; margin: 1.5rem 0 .25rem; overflow-wrap: anywhere; }
p { margin: .5rem 0; overflow-wrap: anywhere; }
section { border-top: 1px solid var(--line); padding-top: 1.75rem; margin-top: 2.25rem; }
section.answer { border: 1px solid var(--line); border-left: 6px solid var(--open); border-radius: 6px;
  background: var(--card); padding: 1.25rem 1.4rem; margin-top: 0; }
section.good { border-left-color: var(--good); }
section.bad { border-left-color: var(--bad); }
.answer .sentence { font-size: 1.2rem; line-height: 1.45; font-weight: 600; margin: 0 0 .5rem; }
.soft { color: var(--soft); }
.small { font-size: .88rem; }
.good-word { color: var(--good); font-weight: 600; }
.bad-word { color: var(--bad); font-weight: 600; }
.open-word { color: var(--open); font-weight: 600; }
dl.facts { display: flex; flex-wrap: wrap; gap: .9rem 2rem; margin: 1rem 0; }
dl.facts > div { min-width: 7rem; max-width: 100%; }
dl.facts dt { color: var(--soft); font-size: .82rem; line-height: 1.3; }
dl.facts dd { margin: .1rem 0 0; font-size: 1.06rem; font-weight: 600; font-variant-numeric: tabular-nums;
  overflow-wrap: anywhere; }
figure { margin: 1rem 0; }
figcaption { color: var(--soft); font-size: .88rem; margin-top: .35rem; }
figure > svg { display: block; width: 100%; height: auto; }
svg text { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif; fill: var(--ink); }
svg text.tick, svg text.name { fill: var(--soft); }
svg text.tick { font-variant-numeric: tabular-nums; }
svg text.label { font-weight: 600; }
svg text.grey { fill: var(--soft); }
svg text.label, svg text.grey { paint-order: stroke; stroke: var(--paper); stroke-width: 3px; stroke-linejoin: round; }
svg .grid { stroke: var(--grid); fill: none; }
svg .axis { stroke: var(--band); fill: none; }
svg .log-band { fill: var(--band); opacity: .22; }
svg .log-line { stroke: var(--band); stroke-width: 1.6; stroke-dasharray: 5 3; fill: none; }
svg .mark { stroke: var(--soft); stroke-dasharray: 1 3; fill: none; stroke-width: 1.4; }
svg .best { fill: var(--accent); opacity: .09; }
svg .interval { stroke: var(--accent); stroke-width: 2.2; fill: none; }
svg .point { fill: var(--accent); stroke: var(--paper); stroke-width: 1.2; }
svg .bar { fill: var(--band); opacity: .65; }
svg .bar.second { fill: var(--c1); opacity: .9; }
svg .outline { stroke: var(--c1); stroke-width: 2; fill: none; }
svg .line { fill: none; stroke-width: 2; stroke-linejoin: round; }
svg .line.thin { stroke-width: 1.2; }
svg .band { opacity: .16; stroke: none; }
svg .line.c0 { stroke: var(--c0); } svg .band.c0, svg .dot.c0 { fill: var(--c0); }
svg .line.c1 { stroke: var(--c1); } svg .band.c1, svg .dot.c1 { fill: var(--c1); }
svg .line.c2 { stroke: var(--c2); } svg .band.c2, svg .dot.c2 { fill: var(--c2); }
svg .line.c3 { stroke: var(--c3); } svg .band.c3, svg .dot.c3 { fill: var(--c3); }
svg .line.c4 { stroke: var(--c4); } svg .band.c4, svg .dot.c4 { fill: var(--c4); }
svg .line.c5 { stroke: var(--c5); } svg .band.c5, svg .dot.c5 { fill: var(--c5); }
svg .line.dash1 { stroke-dasharray: 7 3; } svg .line.dash2 { stroke-dasharray: 2 3; }
ul.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; padding: 0;
  margin: .25rem 0; font-size: .85rem; }
ul.legend li { display: flex; align-items: center; gap: .4rem; overflow-wrap: anywhere; }
ul.legend svg { width: 28px; height: 10px; flex: none; }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(19rem, 1fr)); gap: 0 1.5rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .88rem; margin: .5rem 0; min-width: 60%; }
th, td { text-align: left; vertical-align: top; padding: .3rem .9rem .3rem 0; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; vertical-align: bottom; line-height: 1.3; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
td.n, td.short { white-space: nowrap; }
td.mono { font-family: ui-monospace, Menlo, Consolas, monospace; font-size: .78rem; overflow-wrap: anywhere;
  min-width: 14rem; }
details { margin: .5rem 0; font-size: .9rem; }
summary { cursor: pointer; color: var(--accent); }
pre { background: var(--card); border: 1px solid var(--line); border-radius: 4px; padding: .6rem .8rem; margin: .5rem 0;
  font: .8rem/1.5 ui-monospace, Menlo, Consolas, monospace; white-space: pre-wrap; overflow-wrap: anywhere; }
li { margin: .25rem 0; overflow-wrap: anywhere; }
@media (max-width: 34rem) {
  main { padding: 1.25rem 1rem 3rem; }
  h1 { font-size: 1.4rem; }
  .answer .sentence { font-size: 1.08rem; }
  svg text { font-size: 18px; }
  svg text.y-name { display: none; }
  ul.legend svg text { font-size: 12px; }
}
@media print {
  body { font-size: 10.5pt; }
  main { max-width: none; padding: 0; }
  figure, tr, dl.facts, .answer { break-inside: avoid; }
  .scroll { overflow: visible; }
  th, td { padding-right: .5rem; }
  h2, h3 { break-after: avoid; }
  details { display: none; }
  figure > svg { max-width: 27rem; }
  @page { margin: 18mm 16mm; }
}
"""
