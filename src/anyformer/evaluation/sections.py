"""The sections of a report, each from plain facts to HTML; a section without facts is left out."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from anyformer.evaluation import figures as draw
from anyformer.evaluation.bootstrap import Interval
from anyformer.evaluation.page import Cell, figures, fold, image, pairs, picture, preformat, table, words
from anyformer.evaluation.run_files import RunFiles, is_number
from anyformer.evaluation.sentences import differences_beside, metric_name, show_difference, undecided, verdict, way
from anyformer.evaluation.svg import number


def headline(evaluation: Mapping[str, Any], main: str, split: str) -> str:
    """The main metric and the baselines' on the same rows: one sentence, and a bar for each."""
    ours = (evaluation.get("metrics") or {}).get(split, {}).get(main)
    if not is_number(ours):
        return "<p>This run has not been evaluated.</p>"
    facts, baselines = evaluation.get("facts") or {}, evaluation.get("baselines") or {}
    rows = facts.get("words", facts.get("rows"))
    standing = escape(verdict(main, ours, baselines, rows if isinstance(rows, int) else None))
    count = f"{facts['rows']:,} {facts.get('rows_are') or 'rows'}" if "rows" in facts else (
        f"{facts['tokens']:,} tokens" if "tokens" in facts else "")  # fmt: skip
    where = escape(f"{split}{f', {count}' if count else ''}")
    name = escape(metric_name(main))
    sentence = (
        f'<p class="big"><strong>{number(ours)}</strong> <span>{name} <small>({where})</small></span></p>'
        f'<p class="verdict">{standing[:1].upper() + standing[1:]}{"." if standing else ""}</p>'
    ) + sureness(evaluation, main)
    entries = [("this model", ours, "ours")]
    for role, one in baselines.items():
        value = one.get("metrics", {}).get(main)
        if is_number(value):
            entries.append((str(one.get("name", role)), value, role if role == "trivial" else "strong"))
    longest = max(max(value for _, value, _ in entries), 1.0 if main_share(main) else 0.0) or 1.0
    body = [
        [escape(who), figures(value), (draw.bar(value / longest, class_), "bar-in")] for who, value, class_ in entries
    ]
    bars = table(["", name, way(main)], body, class_="bars")
    return sentence + (bars if len(entries) > 1 else "")


def sureness(evaluation: Mapping[str, Any], main: str) -> str:
    """The confidence interval of the main metric, and why this checkpoint was selected."""
    interval, kept = evaluation.get("interval"), str(evaluation.get("kept") or "")
    said = []
    if isinstance(interval, Mapping):
        low, high = number(interval["low"]), number(interval["high"])
        said.append(f"{metric_name(main)} {low} to {high} in 95 of 100 draws of as many rows, by bootstrap")
    said += [one for each in (evaluation.get("baselines") or {}).values() for one in differences_beside(each)]
    said += [one for one in (undecided(evaluation.get("baselines") or {}), f"kept: {kept}" if kept else "") if one]
    return "".join(f"<p class='note'>{escape(one[:1].upper() + one[1:])}.</p>" for one in said)


def inside(facts: Mapping[str, Any] | None) -> str:
    """The last layer's attention weights for one validation row, and how to see the rest."""
    if not facts:
        return ""
    heads = f"the mean of its {facts['heads']} heads" if facts["heads"] > 1 else "its only head"
    layer = str(facts["layer"])
    layer = layer[:1].lower() + layer[1:]
    if "grid" in facts:
        drawn = draw.heat_map(facts["grid"], None, None, f"Weight on each patch in {layer}")
        what = f"What the token {facts['query']} reads of one validation image in {layer}, {heads}"
    else:
        drawn = draw.heat_map(facts["weights"], facts["queries"], facts["keys"], f"Attention in {layer}")
        where = (
            "What was read (columns) to write each token (rows)"
            if facts["kind"] == "cross"
            else ("Where each token (row) looks")
        )
        what = f"{where} in {layer}, {heads}, for one validation row"
        what += f"; its first {len(facts['keys'])} tokens" if facts["cut"] else ""
    note = (
        "Attention shows where information was read, not why. <code>anyformer look</code> shows every layer and head."
    )
    return picture(drawn, f"{escape(what)}.") + f"<p class='note'>{note}</p>"


def main_share(main: str) -> bool:
    """Whether a metric's maximum is 1, so that its bars end there."""
    return main.partition(".")[0] not in {
        "loss",
        "perplexity",
        "bits_per_byte",
        "log_loss",
        "rmse",
        "scaled_rmse",
        "mae",
        "bleu",
        "chrf",
        "fid",
    }


def scores(evaluation: Mapping[str, Any], split: str) -> str:
    """All metrics of all splits, with the baselines'."""
    columns: dict[str, Mapping[str, Any]] = dict(evaluation.get("metrics") or {})
    for role, one in (evaluation.get("baselines") or {}).items():
        if isinstance(one, Mapping) and one.get("metrics"):
            columns[f"{one.get('name', role)} ({split})"] = one["metrics"]
    names = list(dict.fromkeys(name for one in columns.values() for name in one))
    rows = [
        [
            f"{escape(metric_name(name))} <small>{way(name)}</small>",
            *(figures(one.get(name)) for one in columns.values()),
        ]
        for name in names
    ]
    facts = evaluation.get("facts") or {}
    said = [escape(note) for note in facts.get("notes", [])]
    said += (
        [f"BLEU by sacreBLEU, signature <code>{escape(facts['signature'])}</code>"] if facts.get("signature") else []
    )
    return (table(["metric", *map(escape, columns)], rows) if rows else "") + "".join(
        f"<p class='note'>{s}.</p>" for s in said
    )


def curves(files: RunFiles, main: str) -> str:
    """Loss, learning rate and the main metric over the steps."""
    train, valid = files.line("loss"), files.evaluation_line("loss")
    if not train and not valid:
        return ""
    best = files.run.get("best_step")
    last = [f"training loss ends at {number(train[-1][1])}"] if train else []
    if valid:
        low = min(valid, key=lambda point: point[1])
        last.append(f"validation loss is lowest at step {low[0]:,.0f} ({number(low[1])})")
    drawn = draw.loss_curve(train, valid, best if isinstance(best, int) else None)
    caption = escape("; ".join(last).capitalize() + ". Thin: as logged; thick: running mean")
    out = picture(drawn, caption + ("; ring: the step that was kept." if isinstance(best, int) and valid else "."))
    small = []
    if main != "loss" and (points := files.evaluation_line(main)):
        small.append(
            picture(
                draw.small_curve(points, metric_name(main), marks=True),
                f"{escape(metric_name(main))} of the validation rows.",
            )
        )
    phases = files.phase_losses()
    for key, name in (*((key, key.replace("_", " ")) for key in phases), ("lr", "learning rate"),
                      ("grad_norm", "gradient norm")):  # fmt: skip
        if (points := files.line(key)) and len(small) < 2 + len(phases):
            small.append(
                picture(
                    draw.small_curve(points, name, "third"), f"{name.capitalize()}, {number(points[-1][1])} at the end."
                )
            )
    names = list(dict.fromkeys(name for one in files.evaluations.values() for name in one if is_number(one[name])))
    rows = [
        [f"{step:,}", *(figures(one.get(name)) for name in names)] for step, one in sorted(files.evaluations.items())
    ]
    every = fold(
        "All evaluations as a table", table(["step", *(escape(metric_name(n)) for n in names)], rows) if rows else ""
    )
    return out + f'<div class="two">{"".join(small)}</div>' + every


def confusion(facts: Mapping[str, Any]) -> str:
    """The confusion matrix: rows are true, columns predicted, shaded by the fraction of the row."""
    matrix = facts.get("confusion")
    if not matrix or not matrix["labels"]:
        return ""
    names, counts = [escape(name) for name in matrix["labels"]], matrix["counts"]
    body, nothing = [], "0" if len(names) <= 12 else "·"
    for i, (name, row) in enumerate(zip(names, counts, strict=True)):
        total = sum(row) or 1
        cells: list[str | Cell] = [name]
        for j, count in enumerate(row):
            class_ = f"h{draw.level(count / total)}" + (" right" if i == j else "")
            cells.append((f"{count:,}" if count else f'<span class="zero">{nothing}</span>', class_))
        body.append(cells)
    pairs_ = sorted(
        (-counts[i][j], i, j) for i in range(len(names)) for j in range(len(names)) if i != j and counts[i][j]
    )[:3]
    said = "; ".join(f"“{names[i]}” taken for “{names[j]}” ({-count:,} times)" for count, i, j in pairs_)
    cut = (
        f" Shown are the {len(names)} most confused of {matrix['classes']} classes."
        if matrix["classes"] > len(names)
        else ""
    )
    caption = f"Rows: the truth. Columns: what was predicted. Shade: share of the row.{cut}"
    most = f"<p>{'Most often wrong: ' + said if said else 'Nothing was confused'}.</p><p class='note'>{caption}</p>"
    dense = " dense" if len(names) > 12 else ""
    return most + table(["true \\ predicted", *names], body, class_=f"confusion{dense}")


def labels(facts: Mapping[str, Any]) -> str:
    """Precision, recall and F1 of each class, label or span type."""
    rows = facts.get("labels") or []
    if not rows:
        return ""
    what = escape("span" if facts.get("spans") else str(facts.get("unit") or "label"))
    head = [what, "true" if facts.get("spans") else "rows", "precision", "recall", "F1"]
    area = any("auc" in row for row in rows)
    body = [
        [
            escape(row["label"]), figures(row["rows"]),
            *(figures(float(row[key])) for key in ("precision", "recall", "f1")),
            *([figures(row.get("auc"))] if area else []), (draw.bar(row["f1"], "ours"), "bar-in"),
        ]
        for row in rows
    ]  # fmt: skip
    cut = (
        f"<p class='note'>The {len(rows)} most frequent of {facts['label_count']:,}.</p>"
        if facts["label_count"] > len(rows)
        else ""
    )
    return table([*head, *(["AUC"] if area else []), "F1 as a bar"], body) + cut


def numbers(facts: Mapping[str, Any]) -> str:
    """Predicted against true values and the distribution of errors, for each output."""
    out = []
    for one in facts.get("numbers") or []:
        shown, name = len(one["points"]), escape(one["name"])
        of = f"{shown:,} of {one['count']:,} rows" if shown < one["count"] else f"{shown:,} rows"
        points = picture(draw.scatter(one["points"], one["name"]), f"{of}. On the dashed line a prediction is exact.")
        spread = draw.histogram(one["errors"]["counts"], one["errors"]["edges"], one["name"])
        half, nine = (number(share) for share in one["within"])
        within = f"Half of the predictions are off by at most {half}, nine in ten by at most {nine}"
        errors = picture(spread, f"{within}. Right of zero {name or 'the prediction'} is too high.")
        out.append(f'<div class="two">{points}{errors}</div>')
    return "".join(out)


def calibration(facts: Mapping[str, Any], evaluation: Mapping[str, Any]) -> str:
    """The reliability diagram and the expected calibration error."""
    bins = facts.get("calibration")
    if not bins or not sum(bins["count"]):
        return ""
    gap = sum((s - t) * c for s, t, c in zip(bins["said"], bins["true"], bins["count"], strict=True) if c) / sum(
        bins["count"]
    )
    lean = (
        "on the whole as sure as it should be"
        if abs(gap) < 0.01
        else "on the whole too sure"
        if gap > 0
        else "on the whole not sure enough"
    )
    if "answer" not in bins["what"]:
        lean = (
            f"on average {number(abs(gap))} {'above' if gap > 0 else 'below'} what came true"
            if abs(gap) >= 0.005
            else "on average right"
        )
    caption = f"Expected calibration error {number(bins['error'])}; the {escape(bins['what'])} is {lean}."
    count = len(bins["count"])
    rows = [
        [f"{i / count:.1f} to {(i + 1) / count:.1f}", figures(c), figures(s), figures(t)]
        for i, (c, s, t) in enumerate(zip(bins["count"], bins["said"], bins["true"], strict=True)) if c
    ]  # fmt: skip
    as_table = table(["said", "answers", "mean said", "came true"], rows)
    drawn = f'<div class="two">{picture(draw.reliability(bins), caption)}<div>{as_table}</div></div>'
    return drawn + calibrated(evaluation.get("calibration") or {})


def calibrated(found: Mapping[str, Any]) -> str:
    """The temperature and threshold fitted to validation rows, and their effect."""
    if not found:
        return "<p class='note'>Probabilities are as the model gives them: no temperature was fitted.</p>"
    shown = ", ".join(number(one) for one in found["temperature"][:8])
    said = [f"Temperature {shown}, fitted on {found['rows']:,} validation rows"]
    gain, threshold = found.get("gain"), found.get("threshold")
    if gain is not None:
        by = f"{metric_name(found['metric'])} {show_difference(Interval(**gain))} on validation rows"
        said.append(
            f"answered is yes from {number(threshold)} on in place of 0.5: {by}" if threshold is not None
            else f"a threshold of {number(found['tried'])} in place of 0.5 would be {by}, which is not beyond chance"
        )  # fmt: skip
    rows = [
        [escape(split), escape(metric_name(name)), *(figures(value) for value in pair)]
        for split, effect in (found.get("effect") or {}).items() for name, pair in effect.items()
    ]  # fmt: skip
    return f"<p class='note'>{escape('; '.join(said))}.</p>" + table(["rows", "metric", "before", "after"], rows)


def worst(facts: Mapping[str, Any]) -> str:
    """The rows with the worst predictions."""
    rows = facts.get("worst") or []
    if not rows:
        return ""
    keys = [
        key
        for key in ("place", "shown", "truth", "predicted", "probability", "loss")
        if any(key in row for row in rows)
    ]
    heads = {"place": "where", "shown": "input", "truth": "true", "probability": "with", "loss": facts["worst_by"]}
    body = [
        [figures(row[key]) if is_number(row.get(key)) else (words(row.get(key)), key) for key in keys] for row in rows
    ]
    head = [escape(heads.get(key, key)) for key in keys]
    note = f"<p>{escape(facts['worst_note'])}</p>" if facts.get("worst_note") else ""
    more = table(head, body[10:], class_="worst") if len(body) > 10 else ""
    return note + table(head, body[:10], class_="worst") + fold(f"The next {len(body) - 10}", more)


def samples(files: RunFiles) -> str:
    """Samples generated during training, the last one expanded."""
    last = len(files.samples) - 1
    return "".join(
        fold(escape(name), preformat(made) if isinstance(made, str) else image(made, name), open_=i == last)
        for i, (name, made) in enumerate(files.samples)
    )


def events(files: RunFiles) -> str:
    """Events of the run."""
    rows = []
    for one in files.events:
        rest = {key: value for key, value in one.items() if key not in ("step", "kind", "event", "time")}
        rows.append([words(one.get("step")), words(one.get("kind", one.get("event"))), words(rest)])
    return table(["step", "what", "more"], rows) if rows else ""


def settings(files: RunFiles) -> str:
    """The resolved settings and the environment."""
    config = fold(
        "config.yaml: every setting, resolved before the first step", preformat(files.config) if files.config else ""
    )
    return config + fold("env.json: versions and machine", pairs(files.env))
