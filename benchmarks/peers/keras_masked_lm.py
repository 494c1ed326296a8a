"""KerasHub's BertMaskedLM on the JAX backend as a contender, by `train_on_batch` with a compiled step.

A tf.data pipeline with MaskedLMMaskGenerator (masks made on the host by TensorFlow, in other threads, a batch or more
ahead), loss and weighted accuracy as its `compile` has them by default, AdamW without decay on biases and norms,
clipping of the whole gradient, linear schedule. (`fit` over the same pipeline took a third longer a step.)
"""

import os

os.environ["KERAS_BACKEND"] = "jax"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import jax
import keras
import keras_hub
import tensorflow as tf
from worker import begin, serve

MASK = 4


def dataset_of(case: dict, tokens) -> tf.data.Dataset:
    """Batches without end: (features, targets, weights)."""
    mask = keras_hub.layers.MaskedLMMaskGenerator(
        vocabulary_size=case["vocab_size"],
        mask_selection_rate=case["rate"],
        mask_selection_length=case["capacity"],
        mask_token_id=MASK,
        unselectable_token_ids=list(range(5)),
    )

    def prepare(ids):
        masked = mask(ids)
        features = {
            "token_ids": masked["token_ids"],
            "segment_ids": tf.zeros_like(ids),
            "padding_mask": tf.ones_like(ids),
            "mask_positions": masked["mask_positions"],
        }
        return features, masked["mask_ids"], masked["mask_weights"]

    rows = tf.data.Dataset.from_tensor_slices(tokens).shuffle(len(tokens)).repeat()
    return rows.batch(case["rows"], drop_remainder=True).map(prepare, tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def model_of(case: dict) -> keras.Model:
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=case["vocab_size"],
        num_layers=case["layers"],
        num_heads=case["heads"],
        hidden_dim=case["width"],
        intermediate_dim=case["hidden"],
        dropout=case["dropout"],
        max_sequence_length=case["max_positions"],
    )
    model = keras_hub.models.BertMaskedLM(backbone, preprocessor=None)
    schedule = keras.optimizers.schedules.PolynomialDecay(case["learning_rate"], case["schedule_steps"], 0.0)
    optimizer = keras.optimizers.AdamW(
        schedule, weight_decay=0.01, beta_1=0.9, beta_2=0.98, epsilon=1e-6, global_clipnorm=1.0
    )
    optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    model.compile(optimizer=optimizer, jit_compile=True)
    return model


def main() -> None:
    case, tokens, answers = begin()
    model, batches = model_of(case), iter(dataset_of(case, tokens))

    def run(steps: int) -> float:
        for _ in range(steps):
            loss = model.train_on_batch(*next(batches))[0]
        return loss

    versions = f"keras {keras.__version__}, keras-hub {keras_hub.__version__}, jax {jax.__version__}"
    about = f"{versions}, tensorflow {tf.__version__}"
    serve(answers, run, {"versions": about, "parameters": model.count_params()})


if __name__ == "__main__":
    main()
