"""Pictures of docs/lectures of what a layer computes: shapes, orders, kernels, who moves whom, where parameters are."""

from __future__ import annotations

from docs.lecture_drawing import Names, Panel, bars, lines, matrices, signed_row


def columns(names: Names) -> str:
    """How much of each value is in an answer: sums of the weights over the keys, and over the queries."""
    weights = (names["Q"].T @ names["K"] / names["p"] ** 0.5).softmax(-1)
    sums = [weights.sum(1).tolist(), weights.sum(0).tolist()]
    tokens = [f"token {i}" for i in range(5)]
    return matrices(
        Panel("weights (query by key)", weights.numpy(), tokens, tokens, numbers=".2f", side=180),
        Panel(
            "an answer's weights sum to", sums, ["with the transpose", "on the slide"], tokens, numbers=".2f", side=180
        ),
    )


def kernel_average(names: Names) -> str:
    angles = names["asked"].tolist()
    curves = {name: list(zip(angles, values, strict=True)) for name, values in names["estimates"].items()}
    points = list(zip(names["places"].tolist(), names["heights"].flatten().tolist(), strict=True))
    return lines("Kernel averages of six values", "angle of the query", "answer", {**curves, "the values": points})


def same_at_every_position(names: Names) -> str:
    feed, x, context, order = (names[name] for name in ("feed", "five_tokens", "context", "order"))
    plain, moved = (feed(tokens, context)[0].detach().numpy() for tokens in (x, x[:, order]))
    first, second = ([f"token {i}" for i in indices] for indices in (range(5), order.tolist()))
    return signed_row(
        Panel("answers", plain, first, across="16 channels", down="", side=14),
        Panel("answers, tokens in another order", moved, second, across="16 channels", down="", side=14),
        title="The same network at every position",
    )


def tied(names: Names) -> str:
    parts = {}
    for name in ("tied", "untied"):
        net = names[name].build(device="meta")
        table = net.embed.table.weight.numel()
        blocks = sum(p.numel() for p in net.stack.parameters())
        rest = sum(p.numel() for p in net.parameters()) - table - blocks
        parts[name] = {"embedding table": table, "block": blocks} | ({"output matrix": rest} if rest else {})
    return bars("500 words, width 16", "parameters", parts)


def cross_weights(names: Names) -> str:
    heads = names["by_formula"]
    return matrices(*(
        Panel(f"head {head}", heads[head].detach().numpy(), down="target", across="source", side=112)
        for head in range(len(heads))
    ))  # fmt: skip


def shapes(names: Names) -> str:
    sides = {name: f"{matrix.shape[0]} x {matrix.shape[1]}" for name, matrix in names["matrices_of_nine"].items()}
    return signed_row(*(
        Panel(name, matrix.detach().numpy(), side=9, across=sides[name], down="")
        for name, matrix in names["matrices_of_nine"].items()
    ), title="One head, nine tokens")  # fmt: skip


def two_orders(names: Names) -> str:
    cats, dogs = "She prefers cats to dogs".split(), "She prefers dogs to cats".split()
    plain, placed = names["orders"].values()
    return matrices(
        Panel("P, no positions", plain[0].detach().numpy(), cats, cats, side=100),
        Panel("R X: it is R P Rᵀ", plain[1].detach().numpy(), dogs, dogs, side=100),
        Panel("P, with positions", placed[0].detach().numpy(), cats, cats, side=100),
        Panel("R X: it is not R P Rᵀ", placed[1].detach().numpy(), dogs, dogs, side=100),
        title="The weights of one head for two orders of the same words",
    )  # fmt: skip


def recap(names: Names) -> str:
    return matrices(*(
        Panel(name, sizes.detach().numpy(), down="answer", across="input", side=136)
        for name, sizes in names["moves"].items()
    ), apart=True, title="Who moves whom")  # fmt: skip


def mouse_and_cat(names: Names) -> str:
    mouse, cat = "the mouse ate the cat".split(), "the cat ate the mouse".split()
    titles = {False: "no positions", True: "learned positions"}
    return signed_row(*(
        Panel(titles[learned] if words is mouse else "", hidden.detach().numpy()[:, :10], words, side=12,
              across="10 of 16 channels", down="")
        for learned, both in names["hidden_of"].items()
        for words, hidden in zip((mouse, cat), both, strict=True)
    ), title="Outputs for two orders of the same words")  # fmt: skip


def raw_or_weights(names: Names) -> str:
    return lines("Values 10 and 20, second score -1", "first score", "sum", names["by_score"])


def gpt2_parts(names: Names) -> str:
    summary = names["summary"]
    roles = {"attention": "mixer", "MLP": "feed", "norms": "norms"}
    counted = {
        title: float(sum(part.parameters for part in summary.blocks() if part.role == role)) / 1e6
        for title, role in roles.items()
    }
    rest = sum(part.parameters for part in summary.parts) / 1e6 - sum(counted.values())
    return bars(
        "GPT-2",
        "million parameters",
        {"12 blocks": counted, "the rest": {"embeddings and final norm": rest}},
        number=",.1f",
    )


def all_texts(names: Names) -> str:
    return lines("81 texts of 4 tokens", "text, by its probability", "p", {"p(text)": names["probabilities"].tolist()})


def gpt2_sizes(names: Names) -> str:
    rows = {name: {"parameters": count / 1e6} for name, count in names["gpt_sizes"].items()}
    return bars("GPT-2 in four sizes", "million parameters", rows)


def matching(names: Names) -> str:
    answers, boxes_ = [f"answer {i}" for i in range(3)], [f"box {i}" for i in range(2)]
    return matrices(Panel("cost", names["costs"][0].numpy(), answers, boxes_, numbers=".1f", side=120))


def cache_per_token(names: Names) -> str:
    rows = {name: {"cache": size} for name, size in names["cache_sizes"].items()}
    return bars("KV cache of one token", "KiB", rows)


def overview(names: Names) -> str:
    roles: dict[str, float] = {}
    words = {"embed": "embedding", "mixer": "attention", "feed": "MLP", "final": "final norm"}
    for part in names["overview"].parts:
        name = words.get(part.role, part.role)
        roles[name] = roles.get(name, 0) + part.parameters
    return bars("The model above", "parameters", {name: {"all": count} for name, count in roles.items() if count})


def step_by_step(names: Names) -> str:
    example = names["example"]
    keys, channels = list(example.keys), ["1", "2", "3"]
    return matrices(
        Panel("scores", example.scores[None].numpy(), ["q·k"], keys, numbers=".0f", side=80),
        Panel("/ √3", example.scaled[None].numpy(), ["q·k / √3"], keys, numbers=".1f", side=80),
        Panel("softmax", example.weights[None].numpy(), ["weight"], keys, numbers=".3f", side=80),
        Panel("answer", example.z[None].numpy(), ["z_1"], channels, numbers=".2f", side=120),
        apart=True,
    )  # fmt: skip


def mlp_shapes(names: Names) -> str:
    return signed_row(*(
        Panel(name, part[0].detach().numpy(), side=6, across=f"{part.shape[1]} x {part.shape[2]}", down="")
        for name, part in names["through"].items()
    ), title="Through the MLP")  # fmt: skip


def window_memory(names: Names) -> str:
    held = [(step, size / 1024) for step, size in enumerate(names["held"], 1)]
    return lines("A window of 16", "tokens written", "KiB of memory", {"KV cache": held})


def attention_chain(names: Names) -> str:
    below = ("query by key", "query by key", "8 channels", "8 channels")
    return signed_row(*(
        Panel(name, part[0, 0].numpy(), side=14, across=across, down="")
        for (name, part), across in zip(names["first_head"].items(), below, strict=True)
    ), title="One head of attention, six tokens")  # fmt: skip


def impulse(names: Names) -> str:
    return lines("One input of 1, then zeros", "step", "hidden state", names["responses"])


def carried(names: Names) -> str:
    sizes = {name: [(step, size / 1024) for step, size in each] for name, each in names["carried"].items()}
    return lines("What is kept between steps", "tokens read", "KiB", sizes)


def alignments(names: Names) -> str:
    return matrices(*(
        Panel(score, weights.detach().numpy(), down="step", across="source word", side=150)
        for score, weights in names["alignments"].items()
    ))  # fmt: skip


def queries_keys_values(names: Names) -> str:
    steps = names["steps"]
    shown = {"q of token 2": steps.q[None], "keys": steps.k, "weights": steps.weights[None], "values": steps.v,
             "z": steps.z[None], "z W^O": steps.out[None]}  # fmt: skip
    return signed_row(*(
        Panel(name, part.detach().numpy(), side=16, across=f"{part.shape[0]} x {part.shape[1]}", down="")
        for name, part in shown.items()
    ), title="One query, step by step")  # fmt: skip


def model_parts(names: Names) -> str:
    """Parameters of the encoder-decoder by stack."""
    rows: dict[str, dict[str, float]] = {}
    words = {"mixer": "self-attention", "cross": "cross-attention", "feed": "feed-forward"}
    for side in ("encoder", "decoder"):
        blocks = getattr(names["tiny"], side).stack.blocks
        rows[side] = {
            word: float(
                sum(
                    p.numel() for block in blocks for name, p in block.named_parameters() if name.startswith(part + ".")
                )
            )
            for part, word in words.items()
        }
    return bars("The small model of the page", "parameters of the blocks", rows)


def memory_alone(names: Names) -> str:
    rows = [f"token {i}" for i in range(4)]
    return signed_row(*(
        Panel(name, logits[0, :, :20].detach().numpy(), named, across="20 of 512 words", down="", side=10)
        for (name, logits), named in zip(names["from_memory"].items(), (rows, (), ()), strict=True)
    ), title="Logits from the memory")  # fmt: skip


def answers(names: Names) -> str:
    """Which outputs an answer reads, by its gradient; of the heads the ones that differ."""
    shown = {name: names["reads"][name] for name in ("Pooled (first)", "Pooled (mean)", "TokenHead")}
    return matrices(*(
        Panel(name, (sizes / sizes.max()).numpy(), down="answer" if len(sizes) > 1 else "", across="output", side=153)
        for name, sizes in shown.items()
    ))  # fmt: skip
