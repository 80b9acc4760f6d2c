#include "checkpoint.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "fail.hpp"
#include "safetensors.hpp"
#include "stretto/kernels.hpp"

namespace gpt {

using namespace stretto;
namespace fs = std::filesystem;

namespace {

// Indices of the ranges of each parameter.
std::vector<std::vector<std::size_t>> ranges_by_parameter(Trainer& trainer) {
  std::vector<std::vector<std::size_t>> result(trainer.parameters().all().size());
  const auto& ranges = trainer.sharded().ranges();
  for (std::size_t i = 0; i < ranges.size(); ++i) result[ranges[i].parameter].push_back(i);
  return result;
}

DType state_dtype(const Trainer& trainer) { return kernels::accumulator(trainer.options().sharding.dtype); }

using StateTensor = Tensor AdamWOptimizer::State::*;

// The undivided tensor of a parameter's state in host memory, valid at rank 0. Each rank adds what it owns to zeros, which
// is exact and needs no knowledge of what the others own.
Tensor whole(Trainer& trainer, const Parameter& parameter, const std::vector<std::size_t>& ranges, StateTensor which) {
  const auto& states = trainer.optimizer().states();
  Tensor sum(parameter.global_shape, state_dtype(trainer), Device::cpu);
  sum.zero();
  for (const std::size_t i : ranges) {
    const ShardedParameters::Range& range = trainer.sharded().ranges()[i];
    if (!range.owned) continue;
    const Tensor own = (states[i].*which).on(Device::cpu);
    for_each_run(parameter, range.first, range.count, [&](std::int64_t from, std::int64_t to, std::int64_t count) {
      sum.view(to, {count}).copy_from(own.view(from, {count}));
    });
  }
  const Communicator& world = trainer.mesh().world();
  if (world.size() > 1) {
    world.reduce(sum.raw(), sum.raw(), sum.size(), sum.dtype(), ReduceOp::sum, 0, Stream::inline_(), {.tag = "checkpoint"});
  }
  return sum;
}

struct Section {  // a file of the checkpoint: one or several tensors of each parameter's state
  const char* file;
  std::vector<std::pair<const char*, StateTensor>> tensors;  // prefix of the name, and the member of State
};

const std::vector<Section>& sections() {
  static const std::vector<Section> list = {
      {"model.safetensors", {{"", &AdamWOptimizer::State::master}}},
      {"optimizer.safetensors", {{"m.", &AdamWOptimizer::State::m}, {"v.", &AdamWOptimizer::State::v}}},
  };
  return list;
}

void write_section(Trainer& trainer, const Section& section, const fs::path& directory, std::int64_t step) {
  const auto& parameters = trainer.parameters().all();
  const bool writes = trainer.mesh().world().rank() == 0;
  const DType dtype = state_dtype(trainer);
  const std::vector<std::vector<std::size_t>> ranges = ranges_by_parameter(trainer);
  std::unique_ptr<SafetensorsWriter> writer;
  if (writes) {
    std::vector<TensorEntry> entries;
    for (const auto& [prefix, which] : section.tensors) {
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        entries.push_back({prefix + parameters[i]->name, safetensors_type(dtype), parameters[i]->global_shape});
      }
    }
    writer = std::make_unique<SafetensorsWriter>(
        directory / section.file, entries,
        std::map<std::string, std::string>{{"format", "pt"},
                                           {"step", std::to_string(step)},
                                           {"optimizer_steps", std::to_string(trainer.optimizer().steps())}});
  }
  for (const auto& [prefix, which] : section.tensors) {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const Tensor tensor = whole(trainer, *parameters[i], ranges[i], which);
      if (writes) writer->write(tensor.raw(), tensor.bytes());
    }
  }
  if (writes) writer->finish();
}

std::int64_t number_of(const SafetensorsReader& reader, const char* key) {
  const std::string text = reader.metadata(key);
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0) {
    fail(ErrorCode::io, "{} says '{}' for the metadata '{}', which is no number of steps.", reader.path(), text, key);
  }
  return number;
}

// Moves `with` to `path`. If there is a directory at `path` already, the two change places.
void exchange_directory(const fs::path& path, const fs::path& with) {
  if (renameat2(AT_FDCWD, with.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) == 0) return;
  if (errno == EINVAL || errno == ENOSYS) {  // a file system that cannot exchange: for a moment there is no checkpoint
    fs::remove_all(path);
  } else if (errno != ENOENT) {
    fail(ErrorCode::io, "Cannot put a checkpoint in the place of {}: {}.", path.string(), std::strerror(errno));
  }
  fs::rename(with, path);
}

// Replaces a small file atomically.
void replace_file(const fs::path& path, const std::string& text) {
  const fs::path fresh = path.string() + ".new";
  std::ofstream out(fresh);
  out << text << '\n';
  out.close();
  if (!out || std::rename(fresh.c_str(), path.c_str()) != 0) {
    const int error = errno;
    std::remove(fresh.c_str());
    fail(ErrorCode::io, "Cannot write {}: {}.", path.string(), std::strerror(error));
  }
}

}  // namespace

void save_checkpoint(Trainer& trainer, const std::string& directory, std::int64_t step) {
  trainer.sharded().wait_for_values();
  const std::string name = fmt::format("step_{:08}", step);
  const fs::path final = fs::path(directory) / name;
  const fs::path unfinished = fs::path(directory) / ("." + name + ".unfinished");
  const bool writes = trainer.mesh().world().rank() == 0;
  try {
    if (writes) {
      fs::remove_all(unfinished);
      fs::create_directories(unfinished);
    }
    for (const Section& section : sections()) write_section(trainer, section, unfinished, step);
    if (writes) {
      exchange_directory(final, unfinished);
      replace_file(fs::path(directory) / "latest", name);
      std::error_code ignored;
      fs::remove_all(unfinished, ignored);  // the earlier checkpoint of the same step
    }
  } catch (const std::exception& error) {
    std::error_code ignored;
    if (writes) fs::remove_all(unfinished, ignored);
    const auto* filesystem = dynamic_cast<const fs::filesystem_error*>(&error);
    if (filesystem == nullptr) throw;
    fail(ErrorCode::io, "Cannot save a checkpoint in {}: {}.", directory, filesystem->code().message());
  }
  trainer.mesh().world().barrier(Stream::inline_());  // no rank goes on, or ends, before the checkpoint is complete
}

std::string find_checkpoint(const std::string& directory) {
  if (fs::exists(fs::path(directory) / "model.safetensors")) return directory;
  std::ifstream latest(fs::path(directory) / "latest");
  std::string name;
  if (!std::getline(latest, name)) fail(ErrorCode::io, "There is no checkpoint in {}.", directory);
  return fs::path(directory) / name;
}

LoadedCheckpoint load_checkpoint(Trainer& trainer, const std::string& checkpoint, bool with_optimizer) {
  const auto& parameters = trainer.parameters().all();
  const auto& states = trainer.optimizer().states();
  const auto& ranges = trainer.sharded().ranges();
  const std::vector<std::vector<std::size_t>> by_parameter = ranges_by_parameter(trainer);
  LoadedCheckpoint loaded;
  for (const Section& section : sections()) {
    if (!with_optimizer && &section != &sections().front()) break;
    const SafetensorsReader reader(fs::path(checkpoint) / section.file);
    loaded.step = number_of(reader, "step");
    if (with_optimizer) loaded.optimizer_steps = number_of(reader, "optimizer_steps");
    for (const auto& [prefix, which] : section.tensors) {
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        const Parameter& parameter = *parameters[i];
        const auto saved = reader.tensor(prefix + parameter.name);
        require(saved.shape == parameter.global_shape, "{} has {} of shape [{}], but this model's is [{}].", reader.path(),
                parameter.name, fmt::join(saved.shape, ", "), fmt::join(parameter.global_shape, ", "));
        for (const std::size_t r : by_parameter[i]) {
          const Tensor& state = states[r].*which;
          const Tensor target(state.shape(), state.dtype(), Device::cpu);
          for_each_run(parameter, ranges[r].first, ranges[r].count,
                       [&](std::int64_t to, std::int64_t from, std::int64_t count) {
                         for (std::int64_t k = 0; k < count; ++k) target.set(to + k, saved.at(from + k));
                       });
          state.copy_from(target);
        }
      }
    }
  }
  return loaded;
}

}  // namespace gpt
