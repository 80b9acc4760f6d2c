#!/usr/bin/env bash
# Installs the build, and builds against the installed copy, outside of the source tree, what a user would: the program of
# README.md with find_package, the one of docs/quantization.md with pkg-config, and the examples as they stand. Runs all of
# them; looks at what the library shows of itself. Arguments: source directory, build directory, C++ compiler, C compiler.
set -euo pipefail
source_dir=$1 build_dir=$2 compiler=$3 c_compiler=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
stop() {
  echo "$*"
  exit 1
}
program_in() { # page, language
  awk -v begin="\`\`\`$2" '$0 == begin {inside = 1; next} /^```$/ {inside = 0} inside' "$source_dir/$1"
}
says() { # line of the output, program, its arguments
  local output
  output=$("${@:2}") || stop "$2 ended with status $?."
  grep -qx "$1" <<<"$output" || stop "$2 printed: $output"
}
refuses() { # part of the sentence, program, its arguments
  local said
  if said=$("${@:2}" 2>&1); then stop "${*:2} is accepted."; fi
  grep -qF -- "$1" <<<"$said" || stop "${*:2} is refused with: $said"
}
built_by_cmake() { # directory
  cmake -G Ninja -S "$1" -B "$1/build" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_CXX_COMPILER="$compiler" >/dev/null
  cmake --build "$1/build" >/dev/null
}

cmake --install "$build_dir" --prefix "$work/first" >/dev/null
mv "$work/first" "$work/prefix" # an installed tree may be moved
prefix=$work/prefix
library=$(find "$prefix" -name libstretto.so)
export PKG_CONFIG_PATH=${library%/*}/pkgconfig
unset LD_LIBRARY_PATH # programs find the library by themselves

for program in "$prefix"/bin/*; do
  "$program" --help >/dev/null || stop "The installed ${program##*/} does not start."
done
# What only some calls need is loaded by them.
if ldd "$prefix/bin/stretto-train" | grep -E 'lib(dnnl|openblas|nccl|uc[pst]|cublas|cudnn|nvrtc)'; then
  stop "The installed stretto-train loads these libraries at its start."
fi
while read -r door; do
  if ldd "$door" | grep 'libstretto.*not found'; then stop "The installed $door does not find the library."; fi
done < <(find "$prefix" -name 'libstretto-*.so')

mkdir "$work/program"
program_in README.md cpp >"$work/program/main.cpp"
[ -s "$work/program/main.cpp" ] || stop "README.md has no C++ program."
cat >"$work/program/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.22)
project(program CXX)
find_package(stretto REQUIRED CONFIG)
add_executable(program main.cpp)
target_link_libraries(program PRIVATE stretto::stretto)
CMAKE
built_by_cmake "$work/program"
says 'sum 6' "$work/program/build/program"
says '.*all_reduce #1 of .world. (1048576 f32, at program/main.cpp:[0-9]*).*' "$work/program/build/program"

# Options by name compile without warnings, and the ledger has the line of the call, wherever its options were made.
cat >"$work/options.cpp" <<'PROGRAM'
#include <stretto/layers/linear.hpp>
#include <stretto/layers/optimizer.hpp>
#include <stretto/stretto.hpp>

#include <cstdio>

int main() {
  return stretto::launch(2, [](const stretto::Communicator& world) {
    float x[256] = {};
    const auto sum = [&](const stretto::OperationOptions& options) {
      world.all_reduce(x, x, 256, stretto::DType::f32, stretto::ReduceOp::sum, stretto::Stream::inline_(), options).wait();
    };
    stretto::OperationOptions declared;
    declared.tag = "declared";
    sum(declared);
    sum({.tag = "in braces"});
    sum({.quantization = {.format = stretto::QuantizedFormat::int8}});
    stretto::Parameters parameters;
    const stretto::Axes axes = stretto::token_axes;
    parameters.add({.name = "w", .global_shape = {3}, .first = {0}, .extents = {3}, .replicated_over = axes, .sum_gradient_over = axes});
    const stretto::ShardedParameters sharded(parameters, {world, {{stretto::Axis::data, 2}}}, {.zero = stretto::ZeroStage::none});
    if (world.rank() != 0) return;
    for (const auto& record : world.job().ledger().records()) std::printf("%s\n", record.headline().c_str());
  });
}
PROGRAM
"$compiler" -std=c++20 -Wall -Wextra -Werror "$work/options.cpp" -o "$work/options" $(pkg-config --cflags --libs stretto)
line=$(grep -n 'world.all_reduce' "$work/options.cpp" | cut -d: -f1)
for tag in declared 'in braces'; do says ".*, $tag, at ${work##*/}/options.cpp:$line.*" "$work/options"; done

# A program that only communicates maps none of the libraries that serve other parts; a product, as the control, maps oneDNN.
cat >"$work/maps.cpp" <<'PROGRAM'
#include <stretto/kernels.hpp>
#include <stretto/stretto.hpp>

#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

void print_loaded(const char* after) {
  std::ifstream file("/proc/self/maps");
  const std::string maps(std::istreambuf_iterator<char>(file), {});
  std::printf("%s:", after);
  for (const char* library : {"libdnnl", "libopenblas", "libuc", "libnccl", "libcublas"})
    if (maps.find(std::string("/") + library) != std::string::npos) std::printf(" %s", library);
  std::printf("\n");
}

int main() {
  return stretto::launch(2, [](const stretto::Communicator& world) {
    std::vector<float> x(1000, 1);
    world.all_reduce(x.data(), x.data(), 1000, stretto::DType::f32, stretto::ReduceOp::sum, stretto::Stream::inline_()).wait();
    if (world.rank() != 0) return;
    print_loaded("sum");
    const stretto::Tensor one({1, 1}, stretto::DType::f32, stretto::Device::cpu);
    const stretto::Tensor product({1, 1}, stretto::DType::f32, stretto::Device::cpu);
    *one.data<float>() = 1;
    stretto::kernels::gemm(one, stretto::kernels::Transpose::no, one, stretto::kernels::Transpose::no, product, false);
    print_loaded("product");
  });
}
PROGRAM
read -ra flags <<<"$(pkg-config --cflags --libs stretto)"
"$compiler" -std=c++20 "$work/maps.cpp" -o "$work/maps" "${flags[@]}"
says 'sum:' "$work/maps"
says 'product: libdnnl' "$work/maps"

# A call whose Work is dropped.
cat >"$work/dropped.cpp" <<'EOF'
#include <stretto/stretto.hpp>
void sum(const stretto::Communicator& world, float* x, const stretto::Stream& stream) {
  world.all_reduce(x, x, 1, stretto::DType::f32, stretto::ReduceOp::sum, stream)WAIT;
}
EOF
for wait in '' '.wait()'; do
  said=$("$compiler" -std=c++20 -fsyntax-only -DWAIT="$wait" "$work/dropped.cpp" $(pkg-config --cflags stretto) 2>&1)
  [[ -z $wait ]] || [[ -z $said ]] || stop "A call that is waited for gets a warning: $said"
  [[ -n $wait ]] || grep -q 'nodiscard' <<<"$said" || stop "The compiler does not warn of a call that nobody waits for: $said"
done

# With an older C++ the first error says what is needed.
if said=$("$compiler" -std=c++17 -fsyntax-only "$work/program/main.cpp" $(pkg-config --cflags stretto) 2>&1); then
  stop "A C++17 compiler takes the headers."
fi
grep -m1 'error' <<<"$said" | grep -q 'need C++20' || stop "With C++17 the compiler says first: $(grep -m1 'error' <<<"$said")"

program_in docs/quantization.md cpp >"$work/quantization.cpp"
"$compiler" -std=c++20 "$work/quantization.cpp" -o "$work/quantization" "${flags[@]}"
says 'the mean of the averages: -7.5' "$work/quantization"

cp -r "$source_dir"/examples/link-{cmake,pkgconfig} "$work"
built_by_cmake "$work/link-cmake"
says 'every element is 10 on every rank' "$work/link-cmake/build/sum"
make -s -C "$work/link-pkgconfig" CC="$c_compiler"
says 'the average is 1.5' "$work/link-pkgconfig/average"
program_in docs/c-api.md c | diff - "$work/link-pkgconfig/average.c" || stop "The program of docs/c-api.md is another one."

# In one project, for which CMake looks at the compiler once.
mkdir "$work/examples"
printf 'cmake_minimum_required(VERSION 3.22)\nproject(examples CXX)\n' >"$work/examples/CMakeLists.txt"
for example in gradient-sync own-plan parameter-server sparse-regression controller weights-to-generator zero decoder; do
  cp -r "$source_dir/examples/$example" "$work/examples"
  echo "add_subdirectory($example)" >>"$work/examples/CMakeLists.txt"
done
built_by_cmake "$work/examples"
built=$work/examples/build
says '4 ranks: loss [0-9.]* -> 0\.[0-9]' "$built/gradient-sync/train"
says 'without the last round: .*' "$built/own-plan/own_plan"
says '4000 elements by hypercube, 12000 bytes sent' "$built/own-plan/own_plan"
says 'eventual, worker 0: 120 steps in [0-9.]* s, loss 0\.[01].*' "$built/parameter-server/parameter_server"

# With each consistency the same loss, on generated examples; a data set is learned, and what is wrong with one is said.
"$built/sparse-regression/sparse_regression" >"$work/losses" || stop "sparse_regression ended with status $?."
awk '/ other examples/ {sub(/.*: loss [0-9.]* -> /, ""); if (++n == 1) first = $1 + 0; if ($1 + 0 > 0.68 || $1 + 0 < 0.99 * first || $1 + 0 > 1.01 * first) exit 1}
  END {if (n != 4) exit 1}' "$work/losses" || stop "sparse_regression printed: $(<"$work/losses")"
awk 'BEGIN {for (i = 1; i <= 200; ++i) print "Ge1:" i " And the king smote them."; print ""; for (i = 1; i <= 200; ++i) print "Mat1:" i " And grace be with you."}' |
  python3 "$source_dir/examples/sparse-regression/verses.py" >"$work/verses.svm"
says 'eventual: loss .*, right 50.0% -> 100.0%, of 40 other examples.*' "$built/sparse-regression/sparse_regression" --data "$work/verses.svm" 2
refuses "no line begins with 'Mat1:1 '" python3 "$source_dir/examples/sparse-regression/verses.py" <<<'Ge1:1 And the king.'
printf '1 2:1 7:0.5\n-1 7:1 2:1\n' >"$work/descending.svm"
refuses 'descending.svm:2: the line has the key 2 behind 7, and keys must ascend' "$built/sparse-regression/sparse_regression" --data "$work/descending.svm"
refuses "PASSES is given again, as '20'" "$built/sparse-regression/sparse_regression" 600000 20
refuses "--data is given again, as 'b'" "$built/sparse-regression/sparse_regression" --data a --data b
refuses "--slow is given again, as '3'" "$built/sparse-regression/sparse_regression" --slow 2 --slow 3
refuses '--balance has no effect with --slow 1' "$built/sparse-regression/sparse_regression" --slow 1 --balance
says "visitor: Function 'rank' of program 'sums' of client 'visitor' failed in run 150 on rank 1: this run is unlucky" "$built/controller/controller"
says 'trainer: loss [0-9.]*, after 200 runs 0.0000.*' "$built/controller/controller"
says 'generator: after 150 steps of the trainer, mean square 0\.[01].*' "$built/weights-to-generator/weights_to_generator"
says '4 ranks: loss [0-9.]* -> 0\.0[0-9]*' "$built/zero/zero"
says 'loss [0-9.]* -> [0-9.]*, as on one rank to .*' "$built/decoder/decoder"

# Components: those of the build are there, others are refused in a sentence. A project in C alone links, too.
mkdir "$work/components"
cat >"$work/components/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.22)
project(components LANGUAGES C)
find_package(stretto CONFIG COMPONENTS ${WANTED})
if(NOT stretto_FOUND)
  message(FATAL_ERROR "REFUSED ${stretto_NOT_FOUND_MESSAGE}")
endif()
add_executable(average ${PROGRAM})
target_link_libraries(average PRIVATE stretto::stretto)
CMAKE
with_components() {
  cmake -G Ninja -S "$work/components" -B "$work/components/build" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$c_compiler" \
    -DPROGRAM="$work/link-pkgconfig/average.c" -DWANTED="$1" 2>&1
}
refuses() { # component, reason
  local output
  output=$(with_components "$1") && stop "The component $1 is missing, and not refused."
  tr -s '\n ' ' ' <<<"$output" | grep -q "Component $1 of stretto is not there: $2" || stop "The refusal of $1 says: $output"
}
for part in UCX CUDA; do
  if grep -q "stretto_${part}_FOUND ON" "${library%/*}/cmake/stretto/strettoConfig.cmake"; then
    with_components $part >/dev/null || stop "The component $part is not there, though the build has it."
  else
    refuses $part ".*STRETTO_WITH_$part=ON"
  fi
done
if command -v mpicc >/dev/null; then
  with_components MPI >/dev/null || stop "The component MPI is not there, though there is an MPI."
fi
refuses GPUS "Stretto has no such component"
with_components "" >/dev/null
cmake --build "$work/components/build" >/dev/null
says 'the average is 1.5' "$work/components/build/average"

# Hidden symbols: the API, and nothing of the inside or of other libraries.
nm -DC --defined-only "$library" >"$work/symbols"
grep -q ' T stretto::launch' "$work/symbols" || stop "stretto::launch is not visible."
grep -q ' T strettoAllReduce$' "$work/symbols" || stop "strettoAllReduce is not visible."
if grep -vE '^[0-9a-f]+ [A-Za-z] (stretto[A-Z][A-Za-z]*$|stretto::|(typeinfo|typeinfo name|vtable) for stretto::)' "$work/symbols"; then
  stop "These symbols are none of the API's."
fi
if grep -E ' T stretto::(execute\(|make_local_jobs\(|listen_on\(|CudaKernels::|[A-Za-z]+::(State|Queue|Group)::)' "$work/symbols"; then
  stop "An internal symbol is visible."
fi

# The Debian package: what it needs, and where it puts what.
(cd "$work" && cpack -G DEB --config "$build_dir/CPackConfig.cmake" -B "$work/package" >/dev/null)
package=$(echo "$work"/package/stretto_*.deb)
depends=$(dpkg-deb -f "$package" Depends)
for needed in libc6 libstdc++6 libfmt9 libhwloc15; do
  grep -q "$needed" <<<"$depends" || stop "The package depends on $depends, and not on $needed."
done
recommends=$(dpkg-deb -f "$package" Recommends)
for loaded in libdnnl2 libopenblas0; do
  grep -q "$loaded" <<<"$recommends" || stop "The package recommends $recommends, and not $loaded."
done
dpkg-deb -c "$package" >"$work/contents"
version=$(pkg-config --modversion stretto)
for file in include/stretto/stretto.h "libstretto.so.${version%.*} -> libstretto.so.$version" cmake/stretto/strettoConfig.cmake pkgconfig/stretto.pc; do
  grep -q "\./usr/.*$file" "$work/contents" || stop "The package has no $file."
done
echo "The programs printed what they should."
