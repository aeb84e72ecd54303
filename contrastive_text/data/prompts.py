"""Prompts and templates of a model's texts, by the kind of text; the same in training and in use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from contrastive_text.core.errors import InvalidTypeError, InvalidValueError
from contrastive_text.core.types import MASK_PLACEHOLDER, TEXT_PLACEHOLDER, Role, Template
from contrastive_text.data.tokenizing import TextTokenizer

Kind: TypeAlias = Literal["query", "document"]
"""Kind of a text in retrieval."""

QUERY: Kind = "query"
DOCUMENT: Kind = "document"
DEFAULT = "default"

_TODO = "write prompts as {query: 'query: ', document: 'passage: '}, each with the blank that ends it"


@dataclass(frozen=True)
class Prompts:
    """Prompts by name, as in sentence-transformers' ``config_sentence_transformers.json``.

    A prompt comes before the text. With ``{text}`` in it, it is a template, which sentence-transformers doesn't
    have. ``{mask}`` is the tokenizer's mask token. A prompt is never cut: the text is. No text or token
    view alters a prompt.

    A name is ``query`` or ``document``; the name of a data set, for all its texts; or ``NAME-query`` and
    ``NAME-document``, for its queries and documents. That is how mteb looks names up too.

    Source: "query: " and "passage: " of Wang et al. 2022, E5 (https://arxiv.org/abs/2212.03533), section 3.

    Args:
        named: Name -> text.
        default: Name of the prompt of texts that are neither queries nor documents. An empty name means no
            prompt. None also means no prompt, except in training (see ``with_training_defaults``).
        pooled: Whether the pooler reads the prompt's tokens (E5). Otherwise it skips them, with the special
            tokens before them (INSTRUCTOR: ``include_prompt: false`` of sentence-transformers' ``Pooling``).
        apart: Whether prompts and texts are tokenized separately (PromptBERT), or as one string.
        counted: Whether the length limit counts prompts. Otherwise it bounds the text alone (PromptBERT), as far
            as the network takes longer rows.

    Raises:
        TypeError: A value that isn't a mapping of names to texts.
        ValueError: A default that isn't among the names, ``{text}`` more than once in a prompt, or text after
            ``{text}`` in a prompt that the pooler skips.

    Example:
        >>> prompts = Prompts({"query": "query: ", "document": "passage: "}, default="query")
        >>> prompts.text(), prompts.text("document"), prompts.of_role("negative", task="train")
        ('query: ', 'passage: ', 'passage: ')
    """

    named: Mapping[str, str] = field(default_factory=dict)
    default: str | None = None
    pooled: bool = True
    apart: bool = False
    counted: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.named, Mapping):
            raise InvalidTypeError(f"prompts: expected texts by name, got {self.named!r}; {_TODO}")
        for name, text in self.named.items():
            if not isinstance(text, str):
                raise InvalidTypeError(f"prompts.{name}: expected a text, got {text!r}; {_TODO}")
            if Template.parse(text, f"prompts.{name}").after and not self.pooled:
                raise InvalidValueError(
                    f"prompts.{name}: expected nothing after the text where the pooler leaves prompts out, got "
                    f"{text!r}; drop pooled: false (include_prompt)"
                )
        if self.default and self.default not in self.named:
            raise InvalidValueError(
                f"prompts.default, default_prompt_name: expected one of {self._names()}, got {self.default!r}; "
                "name one of them, or none"
            )

    def with_training_defaults(self) -> Prompts:
        """Returns the prompts that a model has after training with them, with missing names filled in.

        A prompt named ``default`` is also used for ``query`` and ``document`` if they have none. If ``default``
        is None, texts that are neither queries nor documents get the prompt ``default``, or else that of queries:
        E5 has "query: " on both sides if they are of one kind.

        Example:
            >>> Prompts({"default": "text: "}).with_training_defaults().named
            {'query': 'text: ', 'document': 'text: ', 'default': 'text: '}
        """
        if self.default is not None:
            return replace(self, default=self.default or None)
        named = dict(self.named)
        if DEFAULT in named:
            named = {QUERY: named[DEFAULT], DOCUMENT: named[DEFAULT], **named}
        default = next((name for name in (DEFAULT, QUERY) if name in named), None)
        return replace(self, named=named, default=default)

    def __bool__(self) -> bool:
        return any(self.named.values())

    @property
    def spec(self) -> dict[str, object] | str:
        """Settings on which vectors depend, as plain data; empty for a model without prompts."""
        named = {name: text for name, text in sorted(self.named.items()) if text}
        settings = {"named": named, "default": self.text(), "pooled": self.pooled}
        settings |= {} if self.is_plain else {"apart": self.apart, "counted": self.counted}
        return settings if named else ""

    @property
    def is_plain(self) -> bool:
        """True if all prompts are strings before texts, the only form that sentence-transformers supports."""
        texts = "".join(self.named.values())
        return not self or (
            not self.apart and self.counted and TEXT_PLACEHOLDER not in texts and MASK_PLACEHOLDER not in texts
        )

    def template(self, prompt: str | None, tokenizer: TextTokenizer) -> Template:
        """Returns the template of a text with this prompt, which need not be in ``named``; None for the default.

        Raises:
            ValueError: ``{text}`` more than once in the prompt.
        """
        template = Template.parse(self.text() if prompt is None else prompt, "prompt", self.apart, self.counted)
        return template if self.pooled else template._replace(unpooled=tokenizer.count_unpooled(template.before))

    def text(self, name: str | None = None) -> str:
        """Returns the prompt of a name; None for the default prompt, which may be empty.

        Raises:
            ValueError: There is no prompt of this name.
        """
        name = self.default or None if name is None else name
        if name is None:
            return ""
        if name not in self.named:
            raise InvalidValueError(
                f"prompt_name: expected one of {self._names()}, got {name!r}; name one of them, or give the text "
                "itself as prompt"
            )
        return self.named[name]

    def for_kind(self, kind: str) -> str:
        """Returns the prompt of ``query`` or ``document``; empty if the model has none."""
        return self.named.get(kind, "")

    @property
    def has_retrieval_prompts(self) -> bool:
        """True if queries and documents have different prompts."""
        return self.for_kind(QUERY) != self.for_kind(DOCUMENT)

    @property
    def same_for_all(self) -> Prompts:
        """Prompts for texts that are neither queries nor documents: the default prompt for every role."""
        return replace(self, named=dict.fromkeys((QUERY, DOCUMENT), self.text()), default=None)

    def options(self, kind: Kind, given: Mapping[str, Any]) -> dict[str, Any]:  # Any: of encode
        """Returns options of ``encode`` for texts of a kind, with its prompt unless the options name one."""
        is_chosen = any(given.get(name) is not None for name in ("prompt", "prompt_name"))
        prompt = {} if is_chosen else {"prompt_name": None, "prompt": self.for_kind(kind)}
        return {**given, **prompt, "kind": kind}

    def name_of(self, kind: str | None, *sets: str) -> str | None:
        """Returns the most specific prompt name for texts of a kind; None if there is no such name.

        Args:
            kind: ``query`` or ``document``; None for texts that are neither.
            sets: Names of the data set, the most specific first; for mteb a task, then its type.

        Example:
            >>> prompts = Prompts({"query": "q: ", "news-query": "n: ", "STS": "s: "})
            >>> prompts.name_of("query", "news"), prompts.name_of("query"), prompts.name_of(None, "STS12", "STS")
            ('news-query', 'query', 'STS')
        """
        names = [
            name for data_set in sets for name in ((f"{data_set}-{kind}", data_set) if kind else (data_set,))
        ]
        return next((name for name in (*names, kind) if name is not None and name in self.named), None)

    def of_role(self, role: Role, task: str) -> str:
        """Returns the prompt of a role: the query's for anchors and originals, the document's for other roles.

        If the model has neither prompt, all roles have the default prompt.
        """
        name = self.name_of(QUERY if role in ("anchor", "original") else DOCUMENT, task)
        if name is None and not {QUERY, DOCUMENT} & set(self.named):
            return self.text()
        return "" if name is None else self.named[name]

    def check_names(self, tasks: Sequence[str]) -> None:
        """Checks that each prompt is used for some text.

        Args:
            tasks: Names of the data sets; empty for a single data set without a name.

        Raises:
            ValueError: A name that no text uses.
        """
        names = [QUERY, DOCUMENT, DEFAULT]
        names += [name for task in tasks for name in (task, f"{task}-{QUERY}", f"{task}-{DOCUMENT}")]
        for name in self.named:
            if name not in names:
                raise InvalidValueError(
                    f"model.prompts.named.{name}: expected one of {', '.join(names)}, got {name!r}, which no "
                    "text reads; anchors read query, positives and negatives document"
                )

    def describe(self) -> str:
        """Describes the prompts and the texts that have none, for the run's summary.

        Example:
            >>> Prompts({"query": "query: "}, default="query").describe()
            "query: 'query: '; document: none; other texts as query; in the pooler"
        """
        if not self:
            return "none"
        texts = {name: self.named.get(name) for name in (QUERY, DOCUMENT, *self.named)}
        facts = [f"{name}: {text!r}" if text else f"{name}: none" for name, text in texts.items()]
        facts.append(f"other texts as {self.default}" if self.default else "other texts: none")
        facts.append("in the pooler" if self.pooled else "left out of the pooler")
        facts += ["tokenized separately"] if self.apart else []
        facts += [] if self.counted else ["not counted by the length limit"]
        return "; ".join(facts)

    def _names(self) -> str:
        return ", ".join(self.named) or "none, because the model has no prompts"


def kind_of(prompt_name: str | None) -> Kind | None:
    """Returns the kind of the texts of a prompt; None for a prompt of both kinds.

    Example:
        >>> kind_of("news-query"), kind_of("document"), kind_of("news")
        ('query', 'document', None)
    """
    last = (prompt_name or "").rpartition("-")[2]
    return next((kind for kind in (QUERY, DOCUMENT) if last == kind), None)


NO_PROMPTS = Prompts()
"""Default of ``model.prompts``: no text has a prompt."""
