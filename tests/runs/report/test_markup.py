from contrastive_text.runs.report.markup import Html, Note, join, missing, number, table, tag


def test_a_text_never_becomes_markup_and_markup_stays() -> None:
    inner = tag("b", "<i>", title='a "quote"')
    assert tag("p", "a & b", inner) == '<p>a &amp; b<b title="a &quot;quote&quot;">&lt;i&gt;</b></p>'
    assert join(["<", Html("<br>")], " & ") == "&lt; &amp; <br>"


def test_a_table_names_its_rows_and_columns() -> None:
    said = table(["name", "<value>"], [("a", ["1"])], caption="figures")
    assert '<th scope="col">&lt;value&gt;</th>' in said
    assert '<th scope="row">a</th><td>1</td>' in said
    assert "<caption>figures</caption>" in said


def test_a_note_says_what_is_missing_why_and_what_would_bring_it() -> None:
    note = missing("Losses", "there is no <file>", "train")
    assert isinstance(note, Note)
    assert "Losses: not shown. </strong>there is no &lt;file&gt;; train." in note


def test_a_negative_number_has_the_minus_sign_of_print() -> None:
    assert number(-3.2381, ".2f") == "\u22123.24"


def test_a_large_number_is_written_out_up_to_a_billion() -> None:
    found = [number(each, ".3g") for each in (0.00012, 4357.2, -43572.0, 3e12)]
    assert found == ["0.00012", "4,357", "\u221243,572", "3e+12"]
