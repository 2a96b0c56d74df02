#!/usr/bin/env bash
# Runs sweeps on a real SLURM with preemption, lost nodes and time limits; scores must equal those of `lm-mia` bitwise.
#   tests/slurm/slurm_integration.sh [--all | KILLS]
# With --all, one of two processes of a job is killed, too. With a number of kills, it instead runs one sweep whose
# workers and jobs are killed so often at random moments. Takes 6 minutes on 2 cores.
# Needs root, to start the daemons of SLURM, and installs SLURM by apt-get if it is missing;
# otherwise the test is skipped. Prints one line per case, and exits with 1 if one failed. All files are in a temporary
# folder, which is removed at the end. Jobs are held (SIGSTOP) in the middle of a model where a case needs it, so that no
# case depends on speed.
set -uo pipefail
PATH=$PATH:/usr/sbin
cd "$(dirname "$0")/../.."

skip() {
  echo "SKIPPED slurm_integration: $1"
  exit 0
}
[ "$(id -u)" = 0 ] || skip "SLURM's daemons must be started by root"
if ! { command -v slurmctld && command -v slurmd && command -v munged; } >/dev/null; then
  command -v apt-get >/dev/null || skip "SLURM is not installed, and there is no apt-get"
  export DEBIAN_FRONTEND=noninteractive
  { apt-get update && apt-get install -y --no-install-recommends slurm-wlm munge; } >/dev/null ||
    skip "apt-get could not install slurm-wlm and munge"
fi

all='' kills=${1:-0}
[ "$kills" != --all ] || all=yes kills=0
[[ $kills =~ ^[0-9]+$ ]] || { echo "$kills: must be --all or a number of kills" >&2; exit 2; }
python=$(python -c 'import sys, lm_mia; print(sys.executable)') || exit 1
scratch=$(mktemp -d)
export LM_MIA_SLURM_DIR=$scratch/cluster SLURM_CONF=$scratch/cluster/slurm.conf
export JAX_PLATFORMS=cpu JAX_COMPILATION_CACHE_DIR=$scratch/compiled JAX_DISABLE_MOST_OPTIMIZATIONS=1
failed='' job='' local_pid=''
end() {
  [ -z "$local_pid" ] || kill "$local_pid" $(pgrep -P "$local_pid") 2>/dev/null
  bash tests/slurm/slurm_cluster.sh down
  rm -rf "$scratch"
}
trap end EXIT
trap 'exit 143' INT TERM

MODELS=6
# Reading and tokenizing the docstrings of all packages would take longer than training a model.
mkdir "$scratch/texts"
"$python" -c '
import pathlib, random, sys
for i in range(400):
    draw = random.Random(i)
    words = ("".join(draw.choices("aeioulnrst", k=draw.randint(2, 7))) for _ in range(60))
    pathlib.Path(sys.argv[1], f"{i:03}.txt").write_text(" ".join(words))
' "$scratch/texts" || exit 1
config=(
  --config=configs/quickstart.py --config.corpus.source=text --config.corpus.path="$scratch/texts"
  --config.tokenizer.vocab_size=256 --config.population.samples=256 --config.population.length_tokens=32
  --config.model.layers=1 --config.model.width=32 --config.attack.references=4 --config.attack.replicas=2
  --config.attack.resample_references=0 --config.extract.samples=0 --config.train.workers=1
)
one=(--config.train.epochs=36)
pair=(--config.compute.devices_per_model=all --config.train.epochs=3)
declare -A stops_before # of a held job: the number of requests to stop before it was held

# --- checks ---

field() { scontrol --oneliner show job "$1" 2>/dev/null | grep -o " $2=[^ ]*" | head -n 1 | cut -d= -f2-; }
is() { [ "$(field "$1" "$2")" = "$3" ]; }
over() { [ -z "$(squeue --noheader --jobs="$1" 2>/dev/null)" ]; }
log() { echo "$1/logs/$2.out"; }
count_stops() { grep -s 'CANCELLED AT' "$(log "$1" "$2")" | wc -l; } # requests to stop, in the log of slurmstepd

model_of() { # prints the model that job $2 of workdir $1 trains, once it has made some steps
  local model
  model=$(sed -n 's/.*"models": {"\([a-z0-9-]*\)".*/\1/p' "$1"/recipes/*/running/"$2.json" 2>/dev/null)
  [ -n "$model" ] || return 1
  grep -qh "\"event\": \"train\", \"model\": \"$model\".*\"step\": [1-9].*\"job\": \"$2\"" "$1"/metrics/*.jsonl && echo "$model"
}
is_nearly_trained() { # whether job $2 of workdir $1 may have made the last step of model $3
  grep -h "\"event\": \"train\", \"model\": \"$3\".*\"job\": \"$2\"" "$1"/metrics/*.jsonl |
    grep -q '"step": 2[6-8][0-9]' # of 288; logged every 14 steps
}
resumed() { grep -q "\"model_trained\", \"model\": \"$2\".*\"resumed_at\": [1-9]" "$1"/metrics/*.jsonl; }
processes() { pgrep -f -- "^$python -m lm_mia launch make-models .*--job=$1( |\$)"; }
workers() { processes "$1" | while read -r pid; do pgrep -P "$pid" -f spawn_main; done; }

sums() { # prints the SHA-256 of the scores in workdir $1
  (cd "$1"/recipes/quickstart && [ -f "scores.zarr/loss/c/$((MODELS - 1))/0" ] &&
    find scores.zarr -type f ! -name '*.lock' | sort | xargs sha256sum)
}
same() { [ -n "$(sums "$1")" ] && [ "$(sums "$1")" = "$(sums "$2")" ]; }

# --- actions ---

await() { # waits up to $1 s until the command after $2 succeeds; $2 describes the condition
  local until=$((SECONDS + $1)) what=$2
  shift 2
  until "$@"; do
    if ((SECONDS > until)); then
      echo "timed out waiting until $what" >&2
      return 1
    fi
    sleep 0.4
  done
}
population() { mkdir -p "$1" && cp -r "$scratch/sweep/populations" "$1/"; } # built only once
built() { compgen -G "$1/populations/[!.]*" >/dev/null; }
submit() { # submits a sweep in workdir $1; prints the id of its array
  local workdir=$1
  shift
  "$python" -m lm_mia launch slurm --workdir="$workdir" --partition=batch --cpus-per-task=1 --memory=1G --submit "${config[@]}" "$@" |
    tee -a "$scratch/output" | sed -n 's/.*: job //p' | tail -n 1
}
hold() { # stops the jobs of workdir $1 that are in the middle of a model; succeeds once all are stopped
  local workdir=$1 job model before
  shift
  for job in "$@"; do
    [ -n "${stops_before[$job]:-}" ] && continue
    before=$(count_stops "$workdir" "$job")
    model=$(model_of "$workdir" "$job") && workers "$job" | xargs -r kill -STOP || continue
    sleep 1 # until everything that the workers reported is in the log
    if [ "$(model_of "$workdir" "$job")" = "$model" ] && ! is_nearly_trained "$workdir" "$job" "$model"; then
      stops_before[$job]=$before
    else # too late: hold it at the next model
      release "$job"
    fi
  done
  for job in "$@"; do [ -n "${stops_before[$job]:-}" ] || return; done
}
stopped_again() { [ "$(count_stops "$1" "$2")" -gt "${stops_before[$2]}" ]; }
release() { workers "$1" | xargs -r kill -CONT; }
case_of() { # $1: the name; $2: the description; then the command
  local name=$1 what=$2 began=$SECONDS verdict=ok
  shift 2
  if ! "$@" >/dev/null 2>"$scratch/why"; then
    verdict=FAILED failed+=" $name"
    { squeue --noheader --long; tail -n 20 "$(ls -t "$scratch"/*/logs/*.out "$scratch/output" | head -n 1)"; } >&2
    cat "$scratch/why" | tee -a "$scratch/reasons" >&2
  fi
  printf '%-6s  %-12s  %3d s  %s\n' "$verdict" "$name" $((SECONDS - began)) "$what"
}
conclude() { # the reasons once more, since a log may be cut to its end
  [ -z "$failed" ] || cat "$scratch/reasons"
  echo "slurm_integration: $SECONDS s, ${failed:+FAILED:}${failed:-ok}"
  [ -z "$failed" ]
  exit
}

# --- cases ---

array() {
  job=$(submit "$scratch/sweep" --models-per-job=3 --time=60 "${one[@]}")
  [ -n "$job" ] || return
  await 300 "the corpus was made" built "$scratch/sweep" &&
    await 300 "both elements trained models" hold "$scratch/sweep" "${job}_0" "${job}_1" &&
    [ "$(field "${job}_0" NodeList)" != "$(field "${job}_1" NodeList)" ]
}

preemption() {
  local urgent model
  model=$(model_of "$scratch/sweep" "${job}_0")
  urgent=$(sbatch --parsable --partition=urgent --nodelist="$(field "${job}_0" NodeList)" --output=/dev/null \
    --wrap='sleep 1')
  await 300 "${job}_0 received SIGTERM" stopped_again "$scratch/sweep" "${job}_0" && release "${job}_0" &&
    await 300 "${job}_0 was requeued" is "${job}_0" Restarts 1 &&
    await 300 "the urgent job was done" is "$urgent" JobState COMPLETED &&
    await 300 "$model was resumed" resumed "$scratch/sweep" "$model"
}

lost_node() {
  local node other
  node=$(field "${job}_1" NodeList) other=$(field "${job}_0" NodeList)
  scontrol update NodeName="$node" State=DRAIN Reason=test
  sleep 1
  is "${job}_1" JobState RUNNING || return # a drained node lets its job finish
  scontrol update NodeName="$node" State=DOWN Reason=test
  await 300 "${job}_1 was requeued" is "${job}_1" Restarts 1 &&
    await 300 "${job}_1 ran elsewhere" is "${job}_1" NodeList "$other" || return
  scontrol update NodeName="$node" State=RESUME
  await 300 "the sweep was over" over "$job" && is "${job}_0" JobState COMPLETED && is "${job}_1" JobState COMPLETED
}

again() {
  [ -z "$(submit "$scratch/sweep" --models-per-job=3 --time=60 "${one[@]}")" ] &&
    tail -n 2 "$scratch/output" | head -n 1 | grep -q '^All models are present' &&
    tail -n 1 "$scratch/output" | grep -qx "  lm-mia run --workdir=$scratch/sweep"
}

time_limit() { # SLURM checks limits every 30 s, so SIGTERM comes 75 to 105 s after the start
  local workdir=$scratch/limit model
  population "$workdir"
  job=$(submit "$workdir" --models-per-job=6 --time=3 --grace-seconds=75 "${one[@]}")
  [ -n "$job" ] && await 300 "${job}_0 trained a model" hold "$workdir" "${job}_0" || return
  model=$(model_of "$workdir" "${job}_0")
  # While the job is held.
  { make_local >/dev/null && echo ok || echo failed; } >"$scratch/local_verdict" 2>"$scratch/local_output" &
  local_pid=$!
  await 300 "${job}_0 received SIGTERM" stopped_again "$workdir" "${job}_0" && release "${job}_0" &&
    await 300 "${job}_0 was requeued" is "${job}_0" JobState PENDING && [ "$(field "${job}_0" Restarts)" -ge 1 ] &&
    scontrol update JobId="${job}_0" TimeLimit=60 && # once is enough
    await 300 "the sweep was over" over "$job" && is "${job}_0" JobState COMPLETED && resumed "$workdir" "$model"
}

late() { # a job that ignores SIGTERM is killed before its limit
  mkdir -p "$scratch/late/logs"
  "$python" -c '
import pathlib, sys
from launch import slurm
folder = pathlib.Path(sys.argv[1])
options = slurm.SlurmOptions("2", cpus_per_task=1, memory="1G", partition="batch", grace_seconds=60)
command = ["bash", "-c", "trap \"\" TERM; while :; do sleep 1; done"]
print(slurm.script("late", command, [0], 1, 1, folder / "logs", folder, options))
' "$scratch/late" >"$scratch/late/script" && job=$(sbatch --parsable "$scratch/late/script") || return
  await 300 "${job}_0 was requeued" is "${job}_0" Restarts 1 && scancel "$job" && await 300 "it was over" over "$job"
}

cancelled() {
  local workdir=$scratch/cancelled
  population "$workdir"
  job=$(submit "$workdir" --models-per-job=6 --time=60 "${one[@]}")
  [ -n "$job" ] && await 300 "${job}_0 trained a model" hold "$workdir" "${job}_0" || return
  scancel "$job"
  release "${job}_0"
  await 300 "it was over" over "$job" && is "${job}_0" JobState CANCELLED && is "${job}_0" Restarts 0
}

two_nodes() {
  local workdir=$scratch/two_nodes
  population "$workdir"
  job=$(submit "$workdir" --models-per-job=6 --time=60 --nodes=2 "${pair[@]}")
  [ -n "$job" ] && await 300 "the sweep was over" over "$job" && is "${job}_0" JobState COMPLETED &&
    grep -q '"processes": 2,' "$workdir"/metrics/*.jsonl && is "${job}_0" NumNodes 2
}

kill_rank() {
  local workdir=$scratch/killed pid
  population "$workdir"
  job=$(submit "$workdir" --models-per-job=6 --time=60 --nodes=2 --grace-seconds=10 "${pair[@]}")
  [ -n "$job" ] && await 300 "${job}_0 trained a model" hold "$workdir" "${job}_0" || return
  for pid in $(processes "${job}_0"); do
    grep -qz '^SLURM_PROCID=1$' "/proc/$pid/environ" && kill -9 "$pid" $(pgrep -P "$pid" -f spawn_main)
  done
  release "${job}_0"
  await 300 "${job}_0 was requeued" is "${job}_0" Restarts 1 &&
    await 300 "the sweep was over" over "$job" && is "${job}_0" JobState COMPLETED &&
    grep -q 'task 1: Killed' "$(log "$workdir" "${job}_0")"
}

random_kills() { # a kill hits a worker, or all processes of an element of the array
  local workdir=$scratch/random element victim pids killed=0
  # After every step, since a model that fails three times at the same checkpoint is set aside.
  local checkpoints=--config.train.checkpoint_minutes=0.0001
  population "$workdir"
  job=''
  while ((killed < kills)); do
    if [ -z "$job" ] || over "$job"; then # SLURM does not requeue a job that failed; the same command submits the rest
      job=$(submit "$workdir" --models-per-job=3 --time=60 "${one[@]}" "$checkpoints")
      [ -n "$job" ] || { echo "all models are present after $killed kills" >&2; return 1; }
    fi
    sleep "$((RANDOM % 8)).$((RANDOM % 10))"
    element=${job}_$((RANDOM % 2)) victim=worker
    pids=$(workers "$element" | head -n 1)
    if ((RANDOM % 2)); then
      victim=job pids=$(workers "$element" && processes "$element")
    fi
    [ -n "$pids" ] && kill -9 $pids 2>/dev/null || continue # the element waits, or has just ended
    killed=$((killed + 1))
    echo "$victim $element after $SECONDS s" >>"$scratch/kills"
  done
  for _ in 1 2 3; do
    await 600 "the sweep was over" over "$job" || return
    job=$(submit "$workdir" --models-per-job=3 --time=60 "${one[@]}" "$checkpoints")
    [ -n "$job" ] || return 0
  done
  return 1
}

make_local() { # makes the scores with which the others are compared
  local verb
  population "$scratch/local"
  for verb in train score; do
    "$python" -m lm_mia.cli "$verb" --workdir="$scratch/local" "${config[@]}" "${one[@]}" ||
      { echo "lm-mia $verb: exit code $?" >&2; return 1; }
  done
}
made_local() { # `wait` would forget the exit code if a later process got the same number
  await 300 "the local models were made" [ -s "$scratch/local_verdict" ] && local_pid=''
  grep -qx ok "$scratch/local_verdict" && return
  tail -n 20 "$scratch/local_output" >&2
  return 1
}

bash tests/slurm/slurm_cluster.sh up 2 || exit 1
if ((kills)); then
  case_of corpus "the population is made" "$python" -m lm_mia.cli corpus --workdir="$scratch/sweep" "${config[@]}"
  case_of random_kills "$kills kills of workers and jobs at random moments" random_kills
  case_of local "lm-mia train and lm-mia score, without SLURM" make_local
  case_of bytes "scores of random_kills equal those of lm-mia" same "$scratch/local" "$scratch/random"
  cut -d' ' -f1 "$scratch/kills" | sort | uniq -c
  grep -ho '"resumed_at": [1-9]' "$scratch"/random/metrics/*.jsonl | wc -l | sed 's/$/ models resumed in the middle/'
  conclude
fi
case_of array "two elements ran after the corpus, each on its own node" array
case_of preemption "an element was preempted by a job of a higher partition and resumed" preemption
case_of lost_node "the node of an element was drained, then down; the element ran on the other node" lost_node
case_of again "the same command finds every model and prints the next command" again
case_of time_limit "an element was stopped before its time limit and resumed" time_limit
case_of late "an element that did not save before its time limit was requeued" late
case_of cancelled "a canceled element is not requeued" cancelled
case_of two_nodes "two nodes, two processes of one job" two_nodes
[ -z "$all" ] || case_of kill_rank "one of the two processes was killed; the job was requeued" kill_rank
case_of local "lm-mia train and lm-mia score, without SLURM" made_local
case_of bytes_1 "scores of array, preemption and lost_node equal those of lm-mia" same "$scratch/local" "$scratch/sweep"
case_of bytes_2 "scores of time_limit equal those of lm-mia" same "$scratch/local" "$scratch/limit"
[ -z "$all" ] || case_of bytes_3 "scores of kill_rank equal those of two_nodes" same "$scratch/two_nodes" "$scratch/killed"
conclude
