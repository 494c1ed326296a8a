"""Folders that `transformers` wrote go through the verb and back, with its own loaders at both ends."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from golden.make import MODELS, SIZES, TINY, random_model  # noqa: E402
from test_hub import vocab_txt  # noqa: E402

from mlm_jax.cli import convert  # noqa: E402
from mlm_jax.inference import fill_mask, load  # noqa: E402

TEXTS = ["the cat [MASK] well.", "[MASK] dog sings [MASK]."]
# of ELECTRA there is no golden file
FOLDERS = {family: (vocab_size, sizes) for family, (vocab_size, _, sizes) in SIZES.items()} | {
    "electra": (100, TINY | {"embedding_size": 16, "hidden_size": 24, "max_position_embeddings": 16})
}


@pytest.mark.parametrize("family", MODELS)
def test_the_same_answers_on_both_sides(family, tmp_path):
    vocab_size, sizes = FOLDERS[family]
    theirs = random_model(7, family, vocab_size=vocab_size, **sizes)
    theirs.save_pretrained(tmp_path / "hub")
    (tmp_path / "hub" / "vocab.txt").write_text(vocab_txt(vocab_size, pad=1 if family == "roberta" else 0))
    assert convert.main([str(tmp_path / "hub"), str(tmp_path / "run")]) == 0
    assert convert.main([str(tmp_path / "run"), str(tmp_path / "back")]) == 0
    model, report = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not any(report.values()), report
    assert type(model) is type(theirs)
    for name, tensor in theirs.state_dict().items():
        np.testing.assert_array_equal(tensor.numpy(), model.state_dict()[name].numpy(), err_msg=name)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    answers = transformers.pipeline("fill-mask", model=model.eval(), tokenizer=tokenizer, top_k=5)
    loaded = load(tmp_path / "back")
    for texts, options in ((TEXTS, {}), (TEXTS[:1], {"targets": ["dog", "cat"]})):
        for text, ours in zip(texts, fill_mask(loaded, texts, **options)):
            theirs = answers(text, **options)
            for best, guesses in zip(theirs if len(ours["masks"]) > 1 else [theirs], ours["masks"]):
                assert [answer["token"] for answer in best] == [guess["id"] for guess in guesses]
                scores = [answer["score"] for answer in best]
                np.testing.assert_allclose(scores, [guess["probability"] for guess in guesses], rtol=1e-5)
                if len(ours["masks"]) == 1:  # theirs keep CLS and SEP where there are several
                    for answer, guess in zip(best, guesses):
                        if not guess["token"].startswith("["):  # of special tokens each has its own spelling
                            assert answer["sequence"] == guess["sequence"]
