"""The page's style sheet: light and dark, wide and narrow, with the fonts that the reader's machine has."""

SETS = {
    "light": ["#1d5fa8", "#c2571a", "#0f766e", "#9333a8", "#5a7d12", "#b4233a", "#8a6100", "#3f4f9e"],
    "dark": ["#7fb6f0", "#f0975a", "#5fd0c3", "#d59be6", "#b3d561", "#f58a9b", "#e0b95c", "#a6b3f5"],
}
# viridis in ten even steps: without its lightest end on white, without its darkest on black
DECILES = {
    "light": "#440154 #482475 #414287 #355e8d #2a768e #218e8d #21a585 #3dbc74 #70cf57 #b0dd2f".split(),  # noqa: SIM905
    "dark": "#5a5fa8 #4c74ad #3f87ad #3499a8 #2fab9b #3dbb84 #63cb5f #93d741 #c5e021 #fde725".split(),  # noqa: SIM905
}
LIGHT = {
    "page": "#fbfbfa",
    "card": "#ffffff",
    "line": "#e3e4e6",
    "text": "#1b1f24",
    "ink": "#5b636d",
    "grid": "#e9eaec",
    "accent": "#1d5fa8",
    "good": "#e0f2e3",
    "good-text": "#17632c",
    "gap": "#fdeebd",
    "train": "#566270",
    "other": "#c2571a",
}
DARK = {
    "page": "#14171b",
    "card": "#1b1f24",
    "line": "#31373f",
    "text": "#e6e8ea",
    "ink": "#a0a8b2",
    "grid": "#2a2f36",
    "accent": "#7fb6f0",
    "good": "#173a22",
    "good-text": "#8fdca6",
    "gap": "#5a4a10",
    "train": "#98a4b3",
    "other": "#f0975a",
}


def _variables(theme: str, colors: dict[str, str]) -> str:
    colors = dict(colors)
    colors |= {f"set-{i}": color for i, color in enumerate(SETS[theme])}
    colors |= {f"decile-{i}": color for i, color in enumerate(DECILES[theme], start=1)}
    return "".join(f"--{name}:{color};" for name, color in colors.items())


RULES = """
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0 auto;padding:24px 20px 60px;max-width:1160px;background:var(--page);color:var(--text);
 font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans","Noto Sans CJK SC","Noto Naskh Arabic",sans-serif;
 font-variant-numeric:tabular-nums}
h1{font-size:26px;line-height:1.2;margin:0 0 4px;overflow-wrap:anywhere}
h2{font-size:19px;margin:44px 0 12px}
h3{font-size:14px;margin:0 0 4px;font-weight:600}
p{margin:0 0 10px}
.note,.faint,figcaption p,footer{color:var(--ink)}
.note,figcaption p{font-size:13px}
footer{margin-top:48px;font-size:13px}
progress{width:100%;height:6px;margin:12px 0 20px;border:0;border-radius:3px;background:var(--line);display:block;
 overflow:hidden;appearance:none}
progress::-webkit-progress-bar{background:var(--line)}
progress::-webkit-progress-value{background:var(--accent)}
progress::-moz-progress-bar{background:var(--accent)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(165px,1fr));gap:12px;margin:0 0 20px}
.tile,figure,.sample,.card{background:var(--card);border:1px solid var(--line);border-radius:8px}
.tile{padding:12px 14px}
.tile dt{font-size:13px;color:var(--ink)}
.tile dd{margin:0}
.tile .big{font-size:25px;line-height:1.25;font-weight:600}
.tile .small{font-size:13px;color:var(--ink)}
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(330px,100%),1fr));gap:14px;margin-top:14px}
.halves{grid-template-columns:repeat(auto-fit,minmax(min(420px,100%),1fr))}
figure{margin:0;padding:12px 12px 8px;display:flex;flex-direction:column;min-width:0}
figcaption{font-weight:600;margin:0 4px 6px;font-size:14px}
figcaption p{font-weight:400;margin:2px 0 0}
.keys{display:flex;flex-wrap:wrap;gap:2px 14px;font-weight:400;font-size:13px;margin-top:4px}
.key::before{content:"";display:inline-block;width:20px;border-top:3px solid var(--c);vertical-align:middle;
 margin-right:6px}
.key.dashed::before{border-top-style:dashed}
svg{display:block;width:100%;height:auto;margin-top:auto}
svg *{stroke-linejoin:round;stroke-linecap:butt}
svg text{font-family:inherit!important}
.narrow{display:none}
@media(max-width:640px){body{padding:16px 12px 40px}.wide{display:none}.narrow{display:block}
 .tiles{grid-template-columns:1fr 1fr;gap:8px}.tile{padding:10px}.tile .big{font-size:21px}}
.scroll{overflow-x:auto;max-width:100%}
table{border-collapse:collapse;font-size:14px}
th,td{text-align:left;padding:5px 14px 5px 0;border-bottom:1px solid var(--line);vertical-align:top;white-space:nowrap}
thead th{font-weight:500;color:var(--ink);font-size:13px}
tbody tr:last-child>*{border-bottom:0}
.numbers tr>*+*{text-align:right}
.card{padding:8px 14px}
.starts td:last-child{white-space:normal;min-width:260px;overflow-wrap:anywhere}
.starts code{font-size:12px}
.scroll+.note{margin:8px 0 2px}
.facts th{font-weight:400;color:var(--ink)}
.facts td{white-space:normal;overflow-wrap:anywhere}
.sample{padding:14px 16px 8px;margin-bottom:14px}
.sample h3{color:var(--ink);font-weight:500;font-size:13px}
.text{font-size:16px;line-height:1.75;overflow-wrap:anywhere}
mark{background:var(--gap);color:inherit;border:1px solid color-mix(in srgb,var(--text) 25%,transparent);
 border-radius:4px;padding:0 7px;margin:0 1px;font-size:13px;font-weight:600;unicode-bidi:isolate}
.guesses td,.guesses th{padding:5px 10px}
.guesses .number{color:var(--ink);font-weight:400;padding-left:0}
.guesses tbody .truth{font-weight:600}
@media(max-width:640px){.guesses th.number,.guesses th.truth{position:sticky;left:0;background:var(--card)}
 .guesses th.truth{left:32px}}
.guesses .number{width:32px;min-width:32px}
.guesses td{min-width:96px}
.guesses td.right{background:var(--good)}
.guesses td.right bdi{font-weight:600}
.right .sign{color:var(--good-text);font-weight:700}
.wrong .sign,.chance{color:var(--ink)}
.chance{font-size:12px}
.total{color:var(--ink);font-size:13px}
i.faint{font-style:normal}
.bars{display:grid;grid-template-columns:auto 1fr auto;gap:5px 10px;align-items:center;font-size:13px;margin:8px 4px}
.bar{height:13px;border-radius:2px;background:var(--c)}
pre{margin:0 0 10px;padding:12px 14px;background:var(--card);border:1px solid var(--line);border-radius:8px;
 font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;white-space:pre-wrap;
 overflow-wrap:anywhere}
pre.command{user-select:all}
summary{cursor:pointer;color:var(--accent);margin:10px 0}
@media print{body{max-width:none}details{display:none}figure,.sample{break-inside:avoid}}
"""

STYLE = (
    f":root{{color-scheme:light dark;{_variables('light', LIGHT)}}}"
    f"@media(prefers-color-scheme:dark){{:root{{{_variables('dark', DARK)}}}}}" + RULES
)
