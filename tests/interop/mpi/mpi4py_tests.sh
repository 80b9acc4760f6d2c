#!/usr/bin/env bash
# mpi4py's own tests of collectives, with libstretto-mpi.so preloaded and without, for every MPI of the machine: the same tests
# pass, fail and are left out. The tests are in the source package only, which comes from PyPI; under MPICH mpi4py has to be
# compiled, since Debian's is for Open MPI.
# mpi4py_tests.sh BUILD_DIRECTORY [RANKS...]
set -euo pipefail
build=$(realpath "$1")
shift
(($#)) || set -- 2 3 4 8
here=$build/mpi4py
version=3.1.4
mkdir -p "$here"
python=/usr/bin/python3
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

[ -d "$here/mpi4py-$version" ] || {
  $python -m pip download --quiet --no-deps --no-binary :all: --no-build-isolation -d "$here" mpi4py==$version
  tar -xzf "$here/mpi4py-$version.tar.gz" -C "$here"
}

# Each rank writes a file of its own: a launcher may print two ranks' lines as one.
each_rank='exec "$@" >"$LOG.${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" 2>&1'
# Of each rank's output the last line that unittest prints, and the names of what did not pass.
outcome() { { grep -hE '^(OK|FAILED|Ran [0-9]+ tests|(ERROR|FAIL): )' "$1".* || true; } | sed 's/ in [0-9.]*s$//' | sort | uniq -c; }

status=0
for mpi in openmpi mpich; do
  door=$build/lib/$mpi/libstretto-mpi.so
  [ -f "$door" ] || continue
  if [ $mpi = mpich ]; then
    packages=$here/mpich
    [ -d "$packages/mpi4py" ] || MPICC=mpicc.mpich $python -m pip install --quiet --no-deps --no-build-isolation \
      --target "$packages" "$here/mpi4py-$version.tar.gz"
    export PYTHONPATH=$packages
    yields=$here/yielding_progress.so
    cc -O1 -shared -fPIC -o "$yields" "$(dirname "$0")/yielding_progress.c" -Wl,--no-as-needed -lucp
  else
    unset PYTHONPATH
  fi
  for ranks in "$@"; do
    if [ $mpi = mpich ]; then
      launch=(mpirun.mpich -n "$ranks")
      without=(-genv LD_PRELOAD "$yields")
      through=(-genv LD_PRELOAD "$yields $door" -genv STRETTO_MPI_REPORT 1)
    else
      launch=(mpirun.openmpi -n "$ranks" --oversubscribe --bind-to none)
      ((EUID)) || launch+=(--allow-run-as-root)
      without=()
      through=(-x "LD_PRELOAD=$door" -x STRETTO_MPI_REPORT=1)
    fi
    for side in without through; do
      extra=(${without[@]+"${without[@]}"})
      [ $side = through ] && extra=("${through[@]}")
      export LOG=$here/$mpi-$ranks-$side.log
      rm -f "$LOG".*
      (cd "$here/mpi4py-$version/test" && timeout 1500 "${launch[@]}" ${extra[@]+"${extra[@]}"} bash -c "$each_rank" rank \
        $python runtests.py --no-builddir -q -i test_cco_ </dev/null) || true
      outcome "$LOG" >"$here/$mpi-$ranks-$side.txt"
    done
    if diff "$here/$mpi-$ranks-without.txt" "$here/$mpi-$ranks-through.txt" && grep -q 'Ran ' "$here/$mpi-$ranks-through.txt"; then
      echo "$mpi, $ranks ranks: the same with and without: $(tr -s ' \n' ' ' <"$here/$mpi-$ranks-through.txt")"
      grep -h 'stretto-mpi: collective calls' "$here/$mpi-$ranks-through.log".*
    else
      echo "$mpi, $ranks ranks: NOT the same; see $here/$mpi-$ranks-*.log.*"
      status=1
    fi
  done
done
exit $status
