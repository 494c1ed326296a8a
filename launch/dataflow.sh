#!/usr/bin/env bash
# Prepares rows on Google Cloud Dataflow, with Apache Beam: the same bytes as `prepare` on one machine.
#
# Usage:    launch/dataflow.sh PROJECT REGION BUCKET --config=FILE --config.data.sources=gs://... [other flags of prepare]
# Example:  launch/dataflow.sh my-project europe-west4 gs://my-bucket --config=configs/base.py \
#             --config.data.sources='gs://my-bucket/text/*.jsonl.gz' --config.data.pack_groups=256
# Dry run:  DRY=1 launch/dataflow.sh ...   prints the commands, and runs none.
# Settings: ROWS (default BUCKET/rows) where the rows appear; IMAGE (REGION-docker.pkg.dev/PROJECT/mlm-jax/prepare) of
#           the workers, built anew if BUILD=1; WORKERS (20) at most; MACHINE (n2-standard-4).
# Hardware: none of its own; the launcher needs a core and 1 GB, which train the tokenizer.
#
# Not run: it needs an account. What was run is the same pipeline in one process (tests/test_beam.py).
#
# Needs, on the launcher, in a virtual environment of its own (Beam wants a protobuf below 7):
#   pip install -e '.[beam,prepare]' 'apache-beam[gcp]' gcsfs build
# and an account that may use Dataflow, the bucket and, with BUILD=1, Cloud Build (gcloud auth application-default login).
# The image holds the package without its dependencies, and of these what preparation imports: neither jax nor flax.
#
# The rows appear in ROWS, the manifest last; copy them to where the training runs: gcloud storage rsync -r ROWS rows.
# pack_groups is also the most workers that can pack at once, and a group must fit a worker's disk.
#
# Flink, Spark: python -m mlm_jax prepare --config=FILE --config.data.rows=s3://bucket/rows --beam --runner=FlinkRunner \
#   -- --flink_master=HOST:8081 --environment_type=DOCKER --environment_config=IMAGE
# (--runner=SparkRunner --spark_master_url=spark://HOST:7077 alike). Paths must be seen by all workers: an object store
# that Beam knows (apache-beam[aws] for s3), or a shared folder. Not run either.
set -euo pipefail

if [[ $# -lt 4 ]]; then
  sed -n '2,11s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
project=$1 region=$2 bucket=${3%/}
shift 3
if [[ $bucket != gs://* ]]; then
  echo "dataflow.sh: BUCKET must begin with gs://, not be $bucket" >&2
  exit 2
fi

run() {
  printf '+'
  printf ' %q' "$@"
  printf '\n'
  [[ -n ${DRY:-} ]] || "$@"
}

here=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python}
image=${IMAGE:-$region-docker.pkg.dev/$project/mlm-jax/prepare}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [[ -n ${BUILD:-} ]]; then
  sdk=$("$python" -c 'import sys, apache_beam as b; print("%d.%d_sdk:%s" % (*sys.version_info[:2], b.__version__))')
  cat >"$work/Dockerfile" <<END
FROM apache/beam_python$sdk
COPY *.whl /tmp/
RUN pip install 'numpy>=2.0' 'sentencepiece>=0.2.3' 'tokenizers>=0.23.1' 'array-record>=0.8.3' 'pyarrow>=17' \
  'zstandard>=0.23' 'tqdm>=4.66' 'fsspec>=2024.2' gcsfs && pip install --no-deps /tmp/*.whl
END
  cat "$work/Dockerfile"
  run "$python" -m build --wheel --outdir "$work" "$here"
  run gcloud builds submit --project="$project" --tag="$image" "$work"
fi
run "$python" -m mlm_jax prepare "$@" --config.data.rows="${ROWS:-$bucket/rows}" --beam --runner=DataflowRunner -- \
  --project="$project" --region="$region" --temp_location="$bucket/temp" --staging_location="$bucket/staging" \
  --sdk_container_image="$image" --sdk_location=container --no_save_main_session \
  --max_num_workers="${WORKERS:-20}" --machine_type="${MACHINE:-n2-standard-4}"
