"""The configuration of a run: typed dataclasses. Every key is described here."""

import dataclasses


class ConfigError(ValueError):
    """A mistake that the user can mend: names the key, the value, and what would be right. Exit code 2."""

    def __init__(self, key: str, value: object, fix: str):
        super().__init__(f"{key} = {value!r}: {fix}")
        self.key, self.value, self.fix = key, value, fix

    def __reduce__(self):  # so that it comes out of a worker process as it is
        return type(self), (self.key, self.value, self.fix)


class RunError(RuntimeError):
    """What ends a run though nobody did anything wrong; its text is for the user. Exit code 1."""


class SaveError(RunError):
    """A checkpoint that could not be saved; its cause says why."""


@dataclasses.dataclass(unsafe_hash=True)
class FilterConfig:
    """Which documents are dropped for what they look like (`prepare/quality.py`); as it stands, none.

    Words are runs of letters and digits, and single characters where no white space stands between words.
    """

    min_characters: int = 0  # without white space
    min_words: int = 0  # Gopher: 50
    max_word_characters: int = 0  # longest run without white space, such as 1000; 0: any
    min_letters: float = 0.0  # share of letters among the characters other than white space
    max_symbols: float = 0.0  # hash signs, bullets and ellipses for each word, Gopher: 0.1; 0: any number
    max_repeated_lines: float = 1.0  # share of the lines that stand further up already, Gopher: 0.3
    max_repeated_text: float = 1.0  # share of the characters in such lines, Gopher: 0.2
    max_repeated_ngrams: float = 1.0  # share of the words in 5-grams that stand further up already, Gopher: 0.15


@dataclasses.dataclass(unsafe_hash=True)
class DataConfig:
    """Where the text comes from and how it becomes rows."""

    sources: tuple[str, ...] = ("builtin:pydoc",)  # one corpus each: builtin:pydoc, text files, JSON lines; globs, .gz
    weights: tuple[float, ...] = ()  # share of rows drawn from each corpus; empty: in proportion to their rows
    # or to rows ** exponent: below 1 small corpora, such as those of small languages, are read more often than they
    # would be (XLM-R: 0.3, multilingual BERT: 0.7); 0: equally often
    exponent: float = 1.0
    text_field: str = "text"  # of JSON lines
    id_field: str = ""  # of JSON lines, a name that no other document has; empty: documents are named by path and line
    rows: str = ""  # folder of prepared rows; empty: WORKDIR/rows
    # folder that keeps encoded documents and their tokenizer, from which other rows of the same text (another
    # row_length, pairs, collocations) are packed in seconds; several runs may share it. Empty: they are not kept
    encoded: str = ""
    holdout: float = 0.02  # share of documents kept for evaluation, by document hash
    pack_groups: int = 8  # documents are packed within a group; one shard a group
    max_segments: int = 32  # most segments in a row
    # none: a segment is a single text | next: it is a pair of texts, of which the second one follows the first, or is
    # of another document | order: both stand one after the other in one document, so that they can be swapped
    pairs: str = "none"
    # what finds words where no white space stands between them (Chinese, Japanese, Thai): none (each ideograph is a
    # word, a run of other letters one) | icu (its dictionaries). The ids stay the same
    segmenter: str = "none"
    # n-grams of words that stand together far more often than chance has it; the rows mark them, mask.unit=phrase masks
    # them whole. Size of the list; 0: none, and no marks
    collocations: int = 0
    collocation_longest: int = 5  # most words of an n-gram, at least 2
    collocation_count: int = 10  # how often an n-gram must occur in the text that is counted
    collocation_tokens: int = 20_000_000  # text that is counted, whole documents; bounds memory: 1 GB
    filter: FilterConfig = dataclasses.field(default_factory=FilterConfig)
    # of documents with one text one stays, over all sources and both splits: keep (all of them) | exact (the cleaned
    # text is the same) | near (it is the same, or has by estimate nearly the same shingles of 5 words)
    duplicates: str = "keep"
    duplicate_similarity: float = 0.8  # duplicates=near: least Jaccard similarity of the shingles, at least 0.5
    contamination: tuple[
        str, ...
    ] = ()  # files with texts of evaluations, as in sources; none of them may be in the rows
    contamination_words: int = 13  # length of the n-gram that gives a document away
    contamination_action: str = "drop"  # drop | report (such documents are counted and stay)
    workers: int = 0  # processes that prepare; 0: one per core. Changes nothing in the rows


@dataclasses.dataclass(unsafe_hash=True)
class TokenizerConfig:
    """An existing tokenizer, or how to train one."""

    path: str = ""  # spm.model, vocab.txt, tokenizer.json or a folder with one, used as it is; empty: train one
    kind: str = "unigram"  # unigram | bpe | char (SentencePiece) | wordpiece (as of BERT): what is trained
    vocab_size: int = 8192  # number of pieces to train, special ones included
    byte_fallback: bool = False  # SentencePiece: characters without a piece become their bytes, 256 pieces, not [UNK]
    lowercase: bool = False  # text is lower-cased before it is cut into pieces
    # text loses its accents, that is all marks on letters: also the vowels of Thai and Arabic, and the marks of kana
    strip_accents: bool = False
    sample_bytes: int = 10_000_000  # size of the training sample
    terms: str = ""  # file with words, one a line, that become pieces of their own, with new ids after all others


@dataclasses.dataclass(unsafe_hash=True)
class MaskConfig:
    """Four choices: units, priority, budget, corruption; and the regime that decides when a mask is drawn anew.

    Evaluation selects `rate` of the tokens, whatever the schedule, and puts MASK at every selected place (see
    `EvaluateConfig` for other ones).
    """

    rate: float = 0.15  # share of the maskable tokens that is selected; with a schedule, at the first step
    max_rate: float | None = None  # largest rate that a step may ask for; sets the slots. None: the schedule's largest
    # constant | linear, cosine, step (from rate to end_rate) | parts (multiples of rate) |
    # loss (from rate to end_rate as the evaluation loss falls) | adaptive (by the size of the model and the text)
    schedule: str = "constant"
    end_rate: float | None = None  # schedule=linear, cosine, step: rate at the last step; loss: rate at a loss of 0
    stairs: int = 4  # schedule=step: number of equal parts of the run, the first at rate, the last at end_rate
    parts: tuple[tuple[float, float], ...] = ()  # schedule=parts: (share of the steps at which it begins, multiple)
    reference_parameters: float = 110e6  # schedule=adaptive: a model of so many parameters, on a text with a unigram
    reference_entropy: float = 6.5  # entropy of so many nats a token, has the rate `rate`
    # token | word | span and ngram (of words, keyed lengths) | phrase | sentence | paragraph (as the rows mark them) |
    # hierarchical (a level for each sentence)
    unit: str = "word"
    span_p: float = 0.2  # unit=span: P(n words) in proportion to (1 - span_p) ** n
    span_cap: int = 10  # unit=span: most words
    ngram_max: int = 3  # unit=ngram: most words; P(n words) in proportion to 1 / n
    levels: tuple[tuple[str, float], ...] = (("word", 0.5), ("span", 0.3), ("sentence", 0.2))  # hierarchical: weights
    priority: str = "uniform"  # uniform | frequency (rare words first) | importance (to the model); always by chance
    frequency_power: float = 0.5  # priority=frequency: weight of a token = frequency ** -frequency_power
    # priority=importance: weight of a token = surprisal (loss by kind of token, a running table) | hidden (norm of the
    # token's state) | attention (that the token receives)
    importance: str = "surprisal"
    importance_layer: int = 1  # importance=hidden, attention: read from this layer, from 1; -1: the last
    surprisal_memory: float = 100.0  # importance=surprisal: the table's value weighs as much as so many new losses
    temperature: float = 1.0  # weight ** (1 / temperature): near 0 the order of the weights, large: uniform
    stratify: bool = False  # the ten strata of word frequency take turns
    regime: str = "dynamic"  # dynamic (new at each visit) | static | multi-version
    versions: int = 10  # masks per row of the multi-version regime
    corruption: tuple[float, float, float] = (0.8, 0.1, 0.1)  # shares of MASK, random token, kept token
    corruption_per: str = "token"  # token | unit: what one draw of the corruption holds for
    random_ids: str = "uniform"  # random tokens: uniform | unigram (as often as in the training rows)
    random_end: float | None = None  # share of random tokens at the last step, linear; the difference goes to MASK
    min_per_segment: int = 0  # a segment gets at least so many tokens (raises the realised rate, see mask/rate)


@dataclasses.dataclass(unsafe_hash=True)
class ModelConfig:
    """An encoder with its masked-language-model head.

    Switches that are None are as the family has them (`families.PRESETS`); sizes and epsilon go by no family.
    """

    # bert | roberta | electra | modernbert: presets of the switches, and the hub format of `convert`
    family: str = "bert"
    vocab_size: int | None = None  # rows of the word table; None: as many as the tokenizer has ids
    layers: int = 12
    width: int = 768
    embedding_width: int | None = None  # of the tables and of the decoder, with a projection between; None: width
    heads: int = 12
    hidden: int = 3072  # width of the feed-forward layer
    max_positions: int = 512  # rows of the position table; with rotary positions, the longest row
    # post: normalised after each residual sum | pre: before each block but the first, and once after the last; kernels
    # that write into the sum then begin at initializer_range / sqrt(2 layers)
    norm: str | None = None
    positions: str | None = None  # learned (a table) | rotary (queries and keys are turned)
    padding_id: int | None = None  # positions=learned: begin at padding_id + 1, padding has padding_id; -1: begin at 0
    types: int | None = None  # rows of the token type table; 0: none
    ffn: str | None = None  # gelu | geglu (gelu(up x) * gate x)
    biases: bool | None = None  # of linear layers and norms; the decoder always has one
    local_window: int | None = None  # tokens that a local layer sees: half of it on either side; 0: all layers global
    global_every: int | None = None  # layers 0, n, 2 n .. see the whole segment, those between are local
    rotary_base: float | None = None  # of global layers
    rotary_local_base: float | None = None  # of local layers
    tied: bool = True  # the word table is the decoder of the head, too; False: the decoder is a table of its own
    norm_epsilon: float = 1e-12
    initializer_range: float = 0.02  # standard deviation of the truncated normal at the start
    dropout: float | None = None
    attention_dropout: float | None = None  # above 0 it needs all pairs of a row: a local window then saves nothing
    dtype: str = "auto"  # compute type: float32 | bfloat16 | auto (bfloat16 on accelerators, float32 on a CPU)
    logits_mib: int = 0  # most MiB of float32 logits that a device holds at once; 0: 32 on a CPU, 512 on accelerators
    unroll: int = 1  # groups of layers per iteration of the scan over the body; the results do not change
    # what computes attention, the results do not change but for rounding: auto (by platform and row length) | reference
    # (scores of all pairs) | blocks (local layers) | cudnn (NVIDIA GPUs, bfloat16) | splash (TPUs). Where a layer or a
    # pass has no use for the one that is named, it is as with auto
    attention: str = "auto"
    # what the forward pass keeps for the backward pass, which computes the rest again: none (everything is kept) | dots
    # (products with weights; attention but for splash, norms and GELU are computed again) | layer (what enters each
    # layer; costs a forward pass of the layers, a third of their FLOPs, which utilisation does not count)
    remat: str = "none"


@dataclasses.dataclass(unsafe_hash=True)
class ObjectiveConfig:
    """One term of the loss: weight x schedule x (sum of its losses / number of its targets)."""

    weight: float = 0.0  # 0: it is no part of the training, and its head does not exist
    # (share of the steps, multiple of the weight) points, on straight lines between them; (): the weight throughout
    schedule: tuple[tuple[float, float], ...] = ()


@dataclasses.dataclass(unsafe_hash=True)
class MlmConfig(ObjectiveConfig):
    """The selected tokens (BERT: Devlin et al., 2019)."""

    weight: float = 1.0
    # z_loss x log(Z)^2 is part of train/loss, but not of train/mlm/loss, for each of these tokens, of a generator's and
    # of the next ones in causal steps; Z is the sum of the exponentials of its logits, which it holds near 1 (PaLM:
    # Chowdhery et al., 2022: 1e-4)
    z_loss: float = 0.0


@dataclasses.dataclass(unsafe_hash=True)
class ContrastiveConfig(ObjectiveConfig):
    """Which of the segments of `group_rows` neighbouring rows is the same, seen another way (SimCSE: Gao et al., 2021).

    A segment is what CLS says of it. Both views are of a forward pass of their own.
    """

    view: str = "mask"  # what makes the other view: mask (another mask) | dropout (another draw of dropout)
    group_rows: int = 8  # rows whose segments are compared, one after another in the data; divides the microbatch
    temperature: float = 0.05  # of the cosines


@dataclasses.dataclass(unsafe_hash=True)
class ReplacedConfig(ObjectiveConfig):
    """Which tokens were replaced by samples of a small generator (ELECTRA: Clark et al., 2020; its weight is 50).

    The generator is trained beside it, on the selected tokens; it shares the embeddings. No gradient passes the
    samples. Sizes that are None make it a quarter as wide and as deep as the model, which is what the paper found best
    (section 3.2): heads of the same size, a quarter as many.
    """

    generator_weight: float = 1.0  # of the generator's loss; `schedule` is of the discriminator's
    generator_layers: int | None = None
    generator_width: int | None = None
    generator_heads: int | None = None
    generator_hidden: int | None = None  # None: in proportion to the width


@dataclasses.dataclass(unsafe_hash=True)
class CausalConfig:
    """The next token, by the same encoder in which no token sees what follows it; in whole steps.

    All other objectives rest in such a step, so that one model can fill gaps and write on.
    """

    ratio: float = 0.0  # share of the steps, which a hash of seed and step chooses
    weight: float = 1.0
    schedule: tuple[tuple[float, float], ...] = ()  # as of the others


@dataclasses.dataclass(unsafe_hash=True)
class ObjectivesConfig:
    """What is predicted: a weighted sum. Its means are each over all of a step's targets."""

    mlm: MlmConfig = dataclasses.field(default_factory=MlmConfig)
    # whether the second text of a pair follows the first in its document, or is of another one; data.pairs=next
    nsp: ObjectiveConfig = dataclasses.field(default_factory=ObjectiveConfig)
    # whether the texts of a pair, which are swapped on the device, stand in order (ALBERT: Lan et al., 2020);
    # data.pairs=order
    sop: ObjectiveConfig = dataclasses.field(default_factory=ObjectiveConfig)
    contrastive: ContrastiveConfig = dataclasses.field(default_factory=ContrastiveConfig)
    replaced: ReplacedConfig = dataclasses.field(default_factory=ReplacedConfig)
    causal: CausalConfig = dataclasses.field(default_factory=CausalConfig)


@dataclasses.dataclass(unsafe_hash=True)
class OptimizerConfig:
    """Optimizer with warm-up, decay and layer-wise learning rates."""

    # adamw | stable_adamw (updates are clipped tensor by tensor) | lamb (large batches) | muon (matrices of the layers;
    # all else by AdamW at the same rate)
    name: str = "adamw"
    learning_rate: float = 1e-4  # peak
    # after the warm-up: linear, cosine, polynomial (to `end` of the peak at the last step) | inverse_sqrt | wsd
    # (constant, then 1 - sqrt over the last `cooldown`) | step | parts | constant
    schedule: str = "linear"
    warmup: float = 0.06  # share of the steps over which the rate rises linearly from zero
    end: float = 0.0  # schedule=linear, cosine, polynomial, wsd: share of the peak after the last step
    power: float = 2.0  # schedule=polynomial: (part that is left) ** power
    # in place of the share: "2000 steps", "0.5 epochs" or "1e9 tokens", the first of the run; empty: the share counts
    warmup_length: str = ""
    cooldown: float = 0.1  # schedule=wsd: share of the steps over which the rate falls
    cooldown_length: str = ""  # in place of the share, as warmup_length: the last ones of the run
    step_factor: float = 0.9  # schedule=step: rate * step_factor ** floor(step / step_every)
    step_every: int = 1000
    parts: tuple[tuple[float, float], ...] = ()  # schedule=parts: (share of the steps at which it begins, multiple)
    muon_momentum: float = 0.95  # name=muon
    b1: float = 0.9
    b2: float = 0.98
    epsilon: float = 1e-6
    weight_decay: float = 0.01  # not on biases and norm scales
    clip_norm: float = 1.0  # of the whole gradient, once per step; 0: no clipping
    layer_decay: float = 1.0  # rate of a layer = layer_decay ** (distance from the head); 1: the same for all
    groups: tuple[tuple[str, float], ...] = ()  # (regex over a parameter's path, learning rate), first match wins
    # regexes over whole paths of parameters that stay as they are, such as embeddings/.* or layers/(0|1)/.*: no update,
    # no decay, and no part in the gradient's norm. A decoder tied to the word table is frozen with it
    freeze: tuple[str, ...] = ()
    # a loss, gradient or update that is not finite: stop (ends the run, naming the step) | skip (the update is left
    # out, the run goes on with the next rows)
    bad_gradients: str = "stop"
    # above 0: a gradient is bad, too, whose norm is more than so many times its running mean (of about the last 100
    # updates; none of the first 20), such as 10
    exploding: float = 0.0
    most_skipped: int = 10  # bad_gradients=skip: more in a row end the run
    # above 0, such as 0.999: an exponential moving average of the parameters with this decay is kept, evaluated and
    # exported; of the first updates it is shorter
    ema: float = 0.0


@dataclasses.dataclass(unsafe_hash=True)
class MeshConfig:
    """Devices per mesh axis. -1: all that the other axes leave."""

    data: int = -1
    fsdp: int = 1
    tensor: int = 1
    # logical axis -> mesh axis; a logical axis that is not named is not sharded
    rules: tuple[tuple[str, str], ...] = (
        ("width", "fsdp"),
        ("heads", "tensor"),
        ("hidden", "tensor"),
        ("vocab", "tensor"),
    )


@dataclasses.dataclass(unsafe_hash=True)
class CheckpointConfig:
    every_steps: int = 1000
    keep: int = 2  # newest checkpoints that stay


@dataclasses.dataclass(unsafe_hash=True)
class EvaluateConfig:
    every_steps: int = 1000
    rows: int = 0  # at most so many rows of each held-out set; 0: all
    seed: int = 0  # of the fixed masks
    # what is masked, so that runs with different masks are measured by the same ones; None: as `mask` has it
    rate: float | None = None
    unit: str | None = None
    priority: str | None = None  # uniform | frequency


@dataclasses.dataclass(unsafe_hash=True)
class AuditConfig:
    """What the masks really did is counted after the first step, and every so many."""

    every_steps: int = 1000


@dataclasses.dataclass(unsafe_hash=True)
class WatchConfig:
    """What a run looks out for while it trains."""

    # above 0: a loss is high that stands more than so many times the usual spread above the usual loss, by the last
    # `window` losses: their median, and their median distance from it (`spikes.py`). What makes the loss jump on
    # purpose, such as a mask rate in steps, does so, too. 0: no loss is
    spike: float = 6.0
    window: int = 128
    spike_steps: int = 3  # so many high losses in a row are a spike
    # warn (a line that names the rows) | rewind (back to the newest checkpoint that has not seen the rows of the last
    # `skip_steps` steps, which are left out from then on; `WORKDIR/skipped.jsonl` tells of it)
    action: str = "warn"
    skip_steps: int = 200
    most_rewinds: int = 5  # action=rewind: one more ends the run
    # a step, a batch of an evaluation or a save that has not ended for so long is told on stderr and in WORKDIR/stuck,
    # with stack traces; again after twice as long, and so on. It ends nothing. 0: it is not told
    stuck_seconds: float = 600.0


@dataclasses.dataclass(unsafe_hash=True)
class PhaseConfig:
    """A part of a run, from its `begin` to that of the next one, and what is different in it; None: as in the config.

    Where corpora, weights and row length are those of an earlier phase, it reads on where that one stopped; else it
    reads other rows. These are prepared before training begins, with the tokenizer of the first phase's rows.
    """

    begin: float = 0.0  # share of the steps at which it begins; of the first one 0
    row_length: int | None = None
    batch_size: int | None = None
    accumulation: int | None = None
    rows_per_device: int | None = None
    mask_rate: float | None = None  # constant, whatever mask.schedule; evaluation masks mask.rate in every phase
    rate: float | None = None  # multiple of the learning rates, whose schedule goes over the whole run
    rotary_base: float | None = None  # model.rotary_base, such as for longer rows
    sources: tuple[str, ...] | None = None
    weights: tuple[float, ...] | None = None  # of the sources, as data.weights
    rows: str | None = None  # folder of prepared rows, as data.rows, which is that of the first phase's alone


@dataclasses.dataclass(unsafe_hash=True)
class Config:
    """Everything that defines a run. `batch_size` is rows per optimizer step over all devices."""

    seed: int = 0
    steps: int = 100_000
    # in place of `steps`: "3 epochs" (passes over the training rows), "2e9 tokens" (padding not counted) or "500 steps"
    length: str = ""
    batch_size: int = 256
    accumulation: int = 1  # microbatches that an optimizer step adds up
    # above 0: the most rows that a device has at once. `accumulation` then follows from it and the mesh, the smallest
    # with which a device's part of the batch divides into no larger parts, so that batch_size stays on any devices
    rows_per_device: int = 0
    row_length: int = 512
    # folder of a model to begin with, of the hub format or of a run: its weights and architecture (of model.* the
    # run's own are dtype, logits_mib, unroll, attention, remat and a dropout that is set) and, unless tokenizer.path is
    # set, its tokenizer; optimizer and schedule are new
    init_from: str = ""
    # a run, or its WORKDIR/checkpoints/STEP, whose whole state and position in the data a run in a new folder goes on
    # from, to its own `steps` by its own schedule (a new cool-down); rows, seed, model and optimizer.name are the same
    branch_from: str = ""
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    tokenizer: TokenizerConfig = dataclasses.field(default_factory=TokenizerConfig)
    mask: MaskConfig = dataclasses.field(default_factory=MaskConfig)
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    objectives: ObjectivesConfig = dataclasses.field(default_factory=ObjectivesConfig)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)
    checkpoint: CheckpointConfig = dataclasses.field(default_factory=CheckpointConfig)
    evaluate: EvaluateConfig = dataclasses.field(default_factory=EvaluateConfig)
    audit: AuditConfig = dataclasses.field(default_factory=AuditConfig)
    watch: WatchConfig = dataclasses.field(default_factory=WatchConfig)
    # parts of the run, one after the other; empty: one. They stand in the config file; the command line changes single
    # values (--config.phases[1].batch_size=64), or leaves them out (--config.phases="()")
    phases: tuple[PhaseConfig, ...] = ()
