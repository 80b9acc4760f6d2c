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

namespace gpt {

using namespace stretto;
namespace fs = std::filesystem;

namespace {

// The undivided tensor in host memory, valid at tensor rank 0. Slices are added into zeros, which is exact and needs no
// knowledge of the other ranks' slices.
Tensor whole(const Parameter& parameter, const Tensor& tensor, const Mesh& mesh) {
  const Tensor slice = tensor.on(Device::cpu);
  if (mesh.tensor.size() == 1) return slice;
  Tensor sum(parameter.global_shape, slice.dtype(), Device::cpu);
  sum.zero();
  if (!parameter.is_replicated_over(Axis::tensor) || mesh.tensor.rank() == 0) {
    for_each_run(parameter.global_shape, parameter.first, parameter.extents,
                 [&](std::int64_t from, std::int64_t to, std::int64_t count) {
                   sum.view(to, {count}).copy_from(slice.view(from, {count}));
                 });
  }
  mesh.tensor.reduce(sum.raw(), sum.raw(), sum.size(), sum.dtype(), ReduceOp::sum, 0, Stream::inline_(),
                     {.tag = "checkpoint"});
  return sum;
}

struct Section {  // a file of the checkpoint: one or several tensors of each parameter's state
  const char* file;
  std::vector<std::pair<const char*, Tensor AdamWOptimizer::State::*>>
      tensors;  // prefix of the name, and the member of State
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
  const auto& states = trainer.optimizer().states();
  const bool writes = trainer.mesh().world.rank() == 0;
  std::unique_ptr<SafetensorsWriter> writer;
  if (writes) {
    std::vector<TensorEntry> entries;
    for (const auto& [prefix, which] : section.tensors) {
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        entries.push_back(
            {prefix + parameters[i]->name, safetensors_type((states[i].*which).dtype()), parameters[i]->global_shape});
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
      const Tensor tensor = whole(*parameters[i], states[i].*which, trainer.mesh());
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
  trainer.gather_optimizer_state();
  if (trainer.mesh().data.rank() == 0) {
    const std::string name = fmt::format("step_{:08}", step);
    const fs::path final = fs::path(directory) / name;
    const fs::path unfinished = fs::path(directory) / ("." + name + ".unfinished");
    const bool writes = trainer.mesh().world.rank() == 0;
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
  }
  trainer.mesh().world.barrier(Stream::inline_());  // no rank goes on, or ends, before the checkpoint is complete
}

std::string find_checkpoint(const std::string& directory) {
  if (fs::exists(fs::path(directory) / "model.safetensors")) return directory;
  std::ifstream latest(fs::path(directory) / "latest");
  std::string name;
  if (!std::getline(latest, name)) fail(ErrorCode::io, "There is no checkpoint in {}.", directory);
  return fs::path(directory) / name;
}

std::int64_t load_checkpoint(Trainer& trainer, const std::string& checkpoint, bool with_optimizer) {
  const auto& parameters = trainer.parameters().all();
  const auto& states = trainer.optimizer().states();
  std::int64_t step = 0;
  std::int64_t optimizer_steps = 0;
  for (const Section& section : sections()) {
    if (!with_optimizer && &section != &sections().front()) break;
    const SafetensorsReader reader(fs::path(checkpoint) / section.file);
    step = number_of(reader, "step");
    if (with_optimizer) optimizer_steps = number_of(reader, "optimizer_steps");
    for (const auto& [prefix, which] : section.tensors) {
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        const Parameter& parameter = *parameters[i];
        const auto saved = reader.tensor(prefix + parameter.name);
        require(saved.shape == parameter.global_shape, "{} has {} of shape [{}], but this model's is [{}].", reader.path(),
                parameter.name, fmt::join(saved.shape, ", "), fmt::join(parameter.global_shape, ", "));
        const Tensor& state = states[i].*which;
        const Tensor target(state.shape(), state.dtype(), Device::cpu);
        for_each_run(parameter.global_shape, parameter.first, parameter.extents,
                     [&](std::int64_t to, std::int64_t from, std::int64_t count) {
                       for (std::int64_t k = 0; k < count; ++k) target.set(to + k, saved.at(from + k));
                     });
        state.copy_from(target);
      }
    }
  }
  trainer.optimizer().restore(optimizer_steps);
  return step;
}

}  // namespace gpt
