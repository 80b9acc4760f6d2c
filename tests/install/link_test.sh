#!/usr/bin/env bash
# Installs the build, takes the program out of README.md as it stands, builds it against the installed copy with find_package and with pkg-config, and
# runs both; and the program of docs/quantization.md. Arguments: source directory, build directory, C++ compiler.
set -euo pipefail
source_dir=$1 build_dir=$2 compiler=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build_dir" --prefix "$work/prefix" >/dev/null
mkdir "$work/program"
program_in() {
  awk '/^```cpp$/ {inside = 1; next} /^```$/ {inside = 0} inside' "$source_dir/$1"
}
program_in README.md >"$work/program/main.cpp"
[ -s "$work/program/main.cpp" ] || { echo "README.md has no C++ program."; exit 1; }
cat >"$work/program/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.22)
project(program CXX)
find_package(stretto REQUIRED CONFIG)
add_executable(program main.cpp)
target_link_libraries(program PRIVATE stretto::stretto)
CMAKE
cmake -G Ninja -S "$work/program" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_CXX_COMPILER="$compiler" >/dev/null
cmake --build "$work/build" >/dev/null
export LD_LIBRARY_PATH=$work/prefix/lib:$work/prefix/lib/$("$compiler" -print-multiarch 2>/dev/null || true)
pc=$(dirname "$(find "$work/prefix" -name stretto.pc)")
# The file names the prefix that was configured; --define-prefix finds it where it lies.
read -ra flags <<<"$(PKG_CONFIG_PATH=$pc pkg-config --define-variable=prefix="$work/prefix" --cflags --libs stretto)"
"$compiler" -std=c++20 "$work/program/main.cpp" -o "$work/by_pkg_config" "${flags[@]}"

for program in "$work/build/program" "$work/by_pkg_config"; do
  output=$("$program")
  grep -qx 'sum 6' <<<"$output" || { echo "$program printed: $output"; exit 1; }
  grep -q 'all_reduce of 1048576 f32' <<<"$output" || { echo "$program printed no record: $output"; exit 1; }
done
program_in docs/quantization.md >"$work/quantization.cpp"
"$compiler" -std=c++20 "$work/quantization.cpp" -o "$work/quantization" "${flags[@]}"
output=$("$work/quantization")
grep -qx 'the mean of the averages: -7.5' <<<"$output" || { echo "The program of docs/quantization.md printed: $output"; exit 1; }
# Hidden symbols: nothing of the inside is offered.
nm -DC --defined-only "$(find "$work/prefix" -name 'libstretto.so')" >"$work/symbols"
grep -q ' T stretto::launch' "$work/symbols" || { echo "stretto::launch is not visible."; exit 1; }
if grep -E ' T stretto::(execute|make_local_jobs|listen_on)\(' "$work/symbols"; then
  echo "An internal symbol is visible."
  exit 1
fi
echo "The programs printed what they should."
