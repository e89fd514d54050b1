"""SQuAD's JSON (1606.05250, 1806.03822): articles of paragraphs with their questions, read as one row per question."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def is_squad(found: Mapping[str, Any]) -> bool:
    """Whether a JSON object is a list of articles, each with paragraphs that have questions (`qas`).

    >>> is_squad({"version": "v2.0", "data": [{"title": "Oslo", "paragraphs": []}]}), is_squad({"data": [{"a": 1}]})
    (True, False)
    """
    articles = found.get("data")
    return isinstance(articles, list) and bool(articles) and all(is_article(article) for article in articles)


def is_article(article: Any) -> bool:
    return isinstance(article, dict) and isinstance(article.get("paragraphs"), list)


def squad_rows(found: Mapping[str, Any]) -> Iterator[Any]:
    """One row per question, with the column names of Hugging Face; no answer is an empty list.

    Anything but a question is passed on unchanged: the reader of rows reports what is wrong with it, and where.
    """
    for article in found["data"]:
        for paragraph in article["paragraphs"]:
            questions = paragraph.get("qas") if isinstance(paragraph, dict) else None
            if not isinstance(questions, list):
                yield []
                continue
            for question in questions:
                yield squad_row(article, paragraph, question) if isinstance(question, dict) else []


def squad_row(article: Mapping[str, Any], paragraph: Mapping[str, Any], question: Mapping[str, Any]) -> dict[str, Any]:
    """A question with its context; `plausible_answers` of questions without an answer are left out."""
    answers = [answer for answer in question.get("answers") or () if isinstance(answer, dict)]
    return {
        "id": question.get("id"), "title": article.get("title"), "context": paragraph.get("context"),
        "question": question.get("question"),
        "answers": {
            "text": [str(answer.get("text", "")) for answer in answers],
            "answer_start": [answer.get("answer_start") for answer in answers],
        },
    }  # fmt: skip
