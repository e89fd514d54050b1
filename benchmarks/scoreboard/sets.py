"""The sets of the scoreboard: what a user would type for each, and what is published."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.scoreboard import write_media as media
from benchmarks.scoreboard import write_tables as tables
from benchmarks.scoreboard import write_texts as texts
from benchmarks.scoreboard.published import (
    Published,
    matthews,
    nats_per_character,
    pearson,
    read_metric,
    word_perplexity,
)
from benchmarks.scoreboard.write_texts import Writer

RTDL = "FT-Transformer, tuned, 15 seeds (rtdl-revisiting-models)"
CNN = "CNN from random vectors (sent-conv-torch)"
TINY = "BERT-Tiny, pretrained (google-research/bert)"


@dataclass(frozen=True)
class DataSet:
    """One line of the scoreboard. `words` stand behind `anyformer train`, in the folder that `write` fills."""

    name: str
    title: str
    kind: str
    write: Writer
    words: tuple[str, ...]
    published: Published | None = None
    note: str = ""


def list_files(train: str, valid: str = "", test: str = "") -> tuple[str, ...]:
    """Words for files that say their side."""
    return (train, *(("--valid", valid) if valid else ()), *(("--test", test) if test else ()))


def list_three(ending: str) -> tuple[str, ...]:
    return list_files(f"train{ending}", f"valid{ending}", f"test{ending}")


ACCURACY = read_metric("accuracy")
RMSE = read_metric("rmse")

SETS = (
    # ------------------------------------------------------------ published sets, official splits
    DataSet("tinyshakespeare", "tiny Shakespeare", "text", texts.write_shakespeare,
            list_files("train.txt", test="test.txt"),
            Published(1.4697, "nats a character", "nanoGPT, 10.7 M (its README)", nats_per_character)),
    DataSet("wikitext2", "wikitext-2", "text", texts.write_wikitext, list_three(".txt"),
            Published(65.6, "perplexity a word", "AWD-LSTM (its README)", word_perplexity)),
    DataSet("multi30k", "Multi30k en-de", "pairs of texts", texts.write_multi30k,
            ("train.en", "train.de", "--valid", "valid.en", "--valid", "valid.de", "--test", "test.en", "--test",
             "test.de"),
            Published(41.02, "BLEU, lower-cased and tokenised", "Transformer-Tiny (Revisit-MMT)", read_metric("bleu")),
            note="ours is sacreBLEU of raw text, which reads lower"),
    DataSet("scitldr", "SciTLDR-A", "pairs of texts", texts.write_scitldr,
            (*list_three(".csv"), "--task", "translate", "--target", "summary"),
            Published(43.0, "ROUGE-1, best of several summaries", "BART, pretrained", read_metric("rouge1"), False),
            note="ours against the first summary alone"),
    DataSet("sst2", "SST-2", "sentences", texts.write_sst("binary"), list_three(".csv"),
            Published(0.835, "accuracy", f"{CNN}, with labelled phrases", ACCURACY)),
    DataSet("sst5", "SST-5", "sentences", texts.write_sst("fine"), list_three(".csv"),
            Published(0.422, "accuracy", f"{CNN}, with labelled phrases", ACCURACY)),
    DataSet("trec", "TREC-6", "sentences", texts.write_trec, list_files("train.csv", test="test.csv"),
            Published(0.882, "accuracy", CNN, ACCURACY)),
    DataSet("cola", "CoLA", "sentences", texts.write_cola, list_files("train.csv", test="test.csv"),
            Published(0.0, "Matthews' correlation", TINY, matthews)),
    DataSet("mrpc", "MRPC", "pairs of sentences", texts.write_mrpc, list_files("train.csv", test="test.csv"),
            Published(0.711, "accuracy", TINY, ACCURACY)),
    DataSet("rte", "RTE", "pairs of sentences", texts.write_rte, list_files("train.csv", test="test.csv"),
            Published(0.572, "accuracy", TINY, ACCURACY)),
    DataSet("stsb", "STS-B", "pairs of sentences", texts.write_stsb, list_three(".csv"),
            Published(0.743, "Pearson's correlation", TINY, pearson)),
    DataSet("ewt", "EWT, universal tags", "tags", texts.write_ewt, list_three(".conllu"),
            Published(0.954, "accuracy a word", "Stanza, an older release", ACCURACY, False)),
    DataSet("california", "California housing", "table", tables.write_california, list_three(".csv"),
            Published(0.4591, "RMSE", RTDL, RMSE), note="CatBoost .4308"),
    DataSet("adult", "Adult", "table", tables.write_adult, list_three(".csv"),
            Published(0.8587, "accuracy", RTDL, ACCURACY), note="CatBoost .8727"),
    DataSet("digits", "digits", "table", tables.write_digits_table, list_files("train.csv", test="test.csv"),
            Published(0.97, "accuracy", "SVC of scikit-learn's example", ACCURACY, False)),
    DataSet("fashion", "Fashion-MNIST", "images", media.write_fashion, (".",),
            Published(0.925, "accuracy", "two convolutions, under 100 k parameters (its README)", ACCURACY)),
    DataSet("cifar", "CIFAR-10, 10,000 images", "images", media.write_cifar, (".",),
            Published(0.9092, "accuracy", "ViT, 200 epochs of the whole set (ViT-CIFAR)", ACCURACY),
            note="a fifth of the training images"),
    DataSet("digit-images", "digits as images", "images", media.write_digit_images, (".",),
            Published(0.97, "accuracy", "SVC of scikit-learn's example", ACCURACY, False)),
    DataSet("bccd", "BCCD, blood cells", "boxes", media.write_bccd, (".",),
            Published(0.9, "AP50", "detectors fine-tuned from COCO", read_metric("ap50"), False)),
    DataSet("easy-vqa", "easy-VQA", "images with questions", media.write_easy_vqa, list_three(".csv"),
            Published(0.938, "accuracy", "CNN and bag of words, 8 epochs (easy-VQA-keras)", ACCURACY)),
    DataSet("fsdd", "spoken digits", "sound", media.write_spoken_digits, (".",),
            Published(0.97, "accuracy", "small CNNs on spectrograms", ACCURACY, False)),
    DataSet("etth1", "ETTh1, 96 ahead", "series", tables.write_ett,
            ("ETTh1.csv", "--set", "data.series.horizon=96", "--set", "data.split.valid=0.2", "--set",
             "data.split.test=0.2"),
            Published(0.370, "MSE of scaled values", "PatchTST/64 (its table 3)", read_metric("loss"))),
    # ------------------------------------------------------------ of the same kinds: nothing was chosen by them
    DataSet("diabetes", "diabetes", "table", tables.write_sklearn("diabetes"), ("rows.csv",)),
    DataSet("wine", "wine", "table", tables.write_sklearn("wine"), ("rows.csv",)),
    DataSet("cancer", "breast cancer", "table", tables.write_sklearn("breast_cancer"), ("rows.csv",)),
    DataSet("friedman", "Friedman 1, 4,000 rows", "table", tables.write_friedman, ("rows.csv",)),
    DataSet("counts", "whole numbers, 4,000 rows", "table", tables.write_counts, ("rows.csv",)),
    DataSet("uneven", "Adult, 7,000 rows, a quarter positive", "table", tables.write_uneven_adult, ("rows.csv",)),
    DataSet("speakers", "who speaks, of 8", "sentences", texts.write_speakers, ("speeches.csv",)),
    DataSet("names", "names in 2,000 sentences", "tags", texts.write_names, list_three(".conll")),
    DataSet("hours", "an hourly load", "series", tables.write_hours, ("load.csv",)),
)  # fmt: skip
