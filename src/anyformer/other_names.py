"""Names of settings in other libraries, for "did you mean". No imports, so that it is cheap for the command line."""

from collections.abc import Container

OTHER_NAMES = {
    "training.optimizer.lr": ("rate", "learning_rate", "max_lr", "base_lr"),
    "training.optimizer.weight_decay": ("decay", "wd", "l2"),
    "training.optimizer.layer_lr_decay": ("layer_rate", "layer_decay", "llrd"),
    "training.batch_size": ("batch", "bs", "per_device_train_batch_size", "train_batch_size"),
    "training.micro_batch_size": ("micro_batch", "device_batch_size"),
    "training.epochs": ("num_epochs", "num_train_epochs", "n_epochs", "max_epochs", "epoch", "passes"),
    "training.steps": ("max_steps", "num_steps", "max_iters", "iterations", "iters"),
    "training.minutes": ("max_time", "time_limit"),
    "training.seed": ("random_state", "random_seed"),
    "training.schedule": ("scheduler", "lr_scheduler", "lr_scheduler_type"),
    "training.schedule.warmup": ("warmup_steps", "warmup_ratio", "warmup_iters"),
    "training.grad_clip": ("clip", "gradient_clip", "gradient_clip_val", "clip_grad_norm", "max_grad_norm"),
    "training.patience": ("early_stopping", "early_stopping_patience"),
    "training.precision": ("dtype", "fp16", "bf16", "amp", "mixed_precision"),
    "training.save_every": ("save_steps", "save_interval", "checkpoint_every"),
    "training.eval_every": ("eval_steps", "eval_interval", "val_check_interval"),
    "training.workers": ("num_workers", "dataloader_num_workers"),
    "data.tokenizer": ("words",),
    "data.tokenizer.max_length": ("length", "max_len", "max_seq_len", "max_seq_length", "seq_len", "block_size",
                                  "context", "context_length"),
    "data.tokenizer.vocab_size": ("vocab", "vocabulary"),
    "data.tokenizer.lowercase": ("lower", "do_lower_case"),
    "data.images": ("pictures",),
    "data.images.size": ("image_size", "img_size"),
    "data.audio": ("sounds",),
    "data.audio.sample_rate": ("rate", "sampling_rate"),
    "data.target": ("label", "labels", "label_column", "target_column"),
    "data.split.valid": ("val_split", "validation_split", "val_size"),
    "data.split.test": ("test_split", "test_size"),
    "model.stack.depth": ("n_layer", "n_layers", "layers", "num_layers", "num_hidden_layers"),
    "model.stack.width": ("n_embd", "hidden_size", "hidden_dim", "d_model", "dim", "embed_dim"),
    "model.stack.block.mixer.heads": ("n_head", "n_heads", "num_heads", "nhead", "num_attention_heads"),
    "model.stack.block.dropout": ("dropout", "dropout_rate", "dropout_prob"),
    "objective.label_smoothing": ("smoothing",),
    "objective.num_beams": ("beams", "beam_size", "beam_width"),
}  # fmt: skip

# Former names of slot methods that user-defined parts may still override.
OLD_ANSWERS = {
    "biased": "has_bias", "adds": "has_layer_positions", "looks": "has_cross_attention",
    "answers_some": "supports_token_subset", "reads_some": "reads_token_subset",
}  # fmt: skip


def setting_called(path: str) -> str | None:
    """The setting that other libraries call by this name or path, or None; of several, the one with the same parent.

    >>> setting_called("learning_rate"), setting_called("steps"), setting_called("data.words.length")
    ('training.optimizer.lr', None, 'data.tokenizer.max_length')
    >>> setting_called("rate"), setting_called("data.sounds.rate")
    ('training.optimizer.lr', 'data.audio.sample_rate')
    """
    parent, _, last = path.rpartition(".")
    parent = (setting_called(parent) or parent) if parent else ""
    fits = [ours for ours, others in OTHER_NAMES.items() if last in others]
    beside = [ours for ours in fits if ours.rpartition(".")[0] == parent]
    return next(iter(beside or fits), None)


def field_called(name: str, fields: Container[str]) -> str | None:
    """The one of these fields that other libraries call `name`, or None.

    >>> field_called("rate", ["lr", "betas"]), field_called("betas", ["lr", "betas"])
    ('lr', None)
    """
    ours = [path.rpartition(".")[2] for path, others in OTHER_NAMES.items() if name in others]
    return next((field for field in ours if field in fields), None)
