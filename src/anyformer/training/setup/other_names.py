"""What other programs call a setting. Nothing is imported, so that the command line may look here at once."""

OTHER_NAMES = {
    "training.optimizer.rate": ("lr", "learning_rate", "max_lr", "base_lr"),
    "training.optimizer.decay": ("weight_decay", "wd", "l2"),
    "training.batch": ("batch_size", "bs", "per_device_train_batch_size", "train_batch_size"),
    "training.micro_batch": ("micro_batch_size",),
    "training.steps": ("epochs", "num_epochs", "num_train_epochs", "n_epochs", "max_epochs", "epoch", "max_steps",
                       "num_steps", "max_iters", "iterations", "iters"),
    "training.minutes": ("max_time", "time_limit"),
    "training.seed": ("random_state", "random_seed"),
    "training.schedule": ("scheduler", "lr_scheduler", "lr_scheduler_type"),
    "training.schedule.warmup": ("warmup_steps", "warmup_ratio", "warmup_iters"),
    "training.clip": ("grad_clip", "gradient_clip", "gradient_clip_val", "clip_grad_norm", "max_grad_norm"),
    "training.patience": ("early_stopping", "early_stopping_patience"),
    "training.precision": ("dtype", "fp16", "bf16", "amp", "mixed_precision"),
    "training.save_every": ("save_steps", "save_interval", "checkpoint_every"),
    "training.eval_every": ("eval_steps", "eval_interval", "val_check_interval"),
    "training.workers": ("num_workers", "dataloader_num_workers"),
    "data.words.length": ("max_length", "max_len", "max_seq_len", "max_seq_length", "seq_len", "block_size",
                          "context", "context_length"),
    "data.words.kind": ("tokenizer",),
    "data.words.vocab": ("vocab_size",),
    "data.pictures.size": ("image_size", "img_size"),
    "data.target": ("label", "labels", "label_column", "target_column"),
    "data.split.valid": ("val_split", "validation_split", "val_size"),
    "data.split.test": ("test_split", "test_size"),
    "model.stack.depth": ("n_layer", "n_layers", "layers", "num_layers", "num_hidden_layers"),
    "model.stack.width": ("n_embd", "hidden_size", "hidden_dim", "d_model", "dim", "embed_dim"),
    "model.stack.block.mixer.heads": ("n_head", "n_heads", "num_heads", "nhead", "num_attention_heads"),
    "model.stack.block.dropout": ("dropout", "dropout_rate", "dropout_prob"),
    "objective.smoothing": ("label_smoothing",),
    "objective.beams": ("num_beams", "beam_size", "beam_width"),
}  # fmt: skip


def setting_called(name: str) -> str | None:
    """The setting that other programs call `name`, or None.

    >>> setting_called("lr"), setting_called("batch")
    ('training.optimizer.rate', None)
    """
    return next((path for path, others in OTHER_NAMES.items() if name in others), None)
