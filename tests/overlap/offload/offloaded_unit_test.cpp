// A unit whose shares lie in files has the bits of one whose shares lie in memory, at sizes at which tails were lost
// elsewhere.
#include "overlap/offload/offloaded_unit.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "stretto/kernels.hpp"
#include "stretto/stretto.hpp"
#include "support/data.hpp"
#include "support/temporary_directory.hpp"

namespace stretto {
namespace {

const std::vector<std::int64_t> unit_sizes = {1, 2, 511, 512, 513, 1021, 1023, 1024, 1025, 4099};

double number(std::int64_t i, int seed) { return static_cast<double>((i * 7 + seed * 13) % 31 - 15); }

// The block of one unit: its share, padding included.
std::vector<std::int64_t> share_bytes(std::int64_t elements, int ranks, DType dtype) {
  return {(elements + ranks - 1) / ranks * static_cast<std::int64_t>(size_of(dtype))};
}

struct UnitsToCompare {
  UnitsToCompare(const Communicator& world, const std::string& directory, std::int64_t elements, DType dtype)
      : values_file(directory, share_bytes(elements, world.size(), dtype), {.name = "values"}),
        gradients_file(directory, share_bytes(elements, world.size(), DType::f32), {.name = "gradients"}),
        in_memory(world, world, shapes_of(elements), dtype, DType::f32, {.stage = ZeroStage::values}),
        in_files(world, world, shapes_of(elements), dtype, DType::f32, {.stage = ZeroStage::values},
                 {&values_file, &gradients_file, 0}) {}

  static std::vector<Shape> shapes_of(std::int64_t elements) {
    return elements > 600 ? std::vector<Shape>{{elements - 600}, {600}} : std::vector<Shape>{{elements}};
  }

  UnitFile values_file, gradients_file;
  ShardedUnit in_memory;
  OffloadedUnit in_files;
};

// Writes the share as an update does: of a unit in files, in the buffer that its file has read.
void write_values(const Tensor& share, int rank, int seed) {
  for (std::int64_t i = 0; i < share.size(); ++i) share.set(i, number(i + rank * share.size(), seed));
}

void update(UnitsToCompare& units, DType dtype, int rank, int seed) {
  write_values(units.in_memory.share(), rank, seed);
  units.in_memory.share_changed();
  units.values_file.begin({0});
  const Tensor block = units.values_file.take(0);
  write_values(block.view(std::size_t{0}, {units.in_memory.share().size()}, dtype), rank, seed);
  units.values_file.give_back(0);
  units.values_file.end();
  units.in_files.share_changed();
}

void add(ShardedUnit& unit, int seed) {
  for (const Tensor& each : unit.gradients()) {
    for (std::int64_t i = 0; i < each.size(); ++i) each.set(i, each.at(i) + number(i, seed));
  }
}

std::vector<Tensor> values_of(ShardedUnit& unit, const Stream& stream) {
  unit.fetch();
  unit.gather(stream).wait();
  std::vector<Tensor> result;
  for (const Tensor& each : unit.values()) result.push_back(each.clone());
  unit.release();
  return result;
}

class OffloadedUnitSizes : public testing::TestWithParam<std::int64_t> {};

TEST_P(OffloadedUnitSizes, HaveTheBitsOfMemory) {
  const TemporaryDirectory directory;
  for (const int ranks : {1, 2, 4}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      run_threads(ranks, [&](const Communicator& world) {
        UnitsToCompare units(world, directory.path(), GetParam(), dtype);
        EXPECT_EQ(units.in_files.stage(), ZeroStage::values);
        const Stream stream("zero");
        for (int step = 1; step < 3; ++step) {
          update(units, dtype, world.rank(), step);
          const std::vector<Tensor> expected = values_of(units.in_memory, stream);
          EXPECT_TRUE(same_bits(values_of(units.in_files, stream), expected));
          for (ShardedUnit* const unit : {&units.in_memory, static_cast<ShardedUnit*>(&units.in_files)}) {
            unit->zero_gradients();
            Work summed;
            for (int microbatch = 0; microbatch < 3; ++microbatch) {
              unit->used_for(Pass::backward, microbatch);
              add(*unit, step + microbatch + world.rank());
              summed = unit->sum(stream);
            }
            summed.wait();
          }
          units.gradients_file.touch();
          // In memory, the gradients of one rank never leave.
          const Tensor sums = units.in_memory.gradient_share().view(0, {units.in_files.gradient_share().size()});
          EXPECT_TRUE(same_bits(units.in_files.gradient_share().clone(), sums.clone()));
          std::int64_t first = 0;
          for (std::size_t i = 0; i < units.in_files.owned().size(); ++i) {
            const Tensor range = sums.view(first, {units.in_files.owned()[i].count});
            EXPECT_EQ(units.in_files.squares()[i], kernels::sum_of_squares(range));
            first += range.size();
          }
        }
        update(units, dtype, world.rank(), 7);
        const std::vector<Tensor> old = values_of(units.in_memory, stream);
        update(units, dtype, world.rank(), 8);
        EXPECT_FALSE(same_bits(values_of(units.in_files, stream), old)) << "the control: others were written";
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, OffloadedUnitSizes, testing::ValuesIn(unit_sizes));

TEST(OffloadedUnit, ReadsAndWritesItsShareOnceForEachUse) {
  const TemporaryDirectory directory;
  run_threads(2, [&](const Communicator& world) {
    UnitsToCompare units(world, directory.path(), 3000, DType::f32);
    const std::int64_t block = units.values_file.bytes();
    EXPECT_EQ(block, 8192);  // 6000 bytes in whole pages
    std::ignore = values_of(units.in_files, Stream::inline_());
    units.in_files.fetch();
    std::ignore = values_of(units.in_files, Stream::inline_());
    EXPECT_EQ(units.values_file.traffic().read, 2 * block);
    units.in_files.zero_gradients();
    for (int microbatch = 0; microbatch < 3; ++microbatch) {
      units.in_files.used_for(Pass::backward, microbatch);
      add(units.in_files, microbatch);
      units.in_files.sum(Stream::inline_()).wait();
    }
    EXPECT_EQ(units.gradients_file.traffic().written, 3 * block);
    EXPECT_EQ(units.gradients_file.traffic().read, 2 * block);
  });
}

}  // namespace
}  // namespace stretto
