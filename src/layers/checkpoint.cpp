#include "stretto/layers/checkpoint.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "core/fail.hpp"
#include "layers/safetensors.hpp"
#include "layers/whole_state.hpp"

namespace stretto {
namespace {

namespace fs = std::filesystem;
using Notes = std::map<std::string, std::string>;

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

constexpr const char* step_key = "step";
constexpr const char* optimizer_steps_key = "optimizer_steps";
constexpr std::array<const char*, 3> own_keys = {"format", step_key, optimizer_steps_key};

// ---- writing

class CheckpointWriter {
 public:
  CheckpointWriter(const ShardedParameters& parameters, const AdamWOptimizer& optimizer, Notes metadata)
      : parameters_(parameters), state_(parameters, optimizer), metadata_(std::move(metadata)) {}

  bool writes() const { return world().rank() == 0; }

  // Collective.
  void write(const Section& section, const fs::path& directory) const {
    std::unique_ptr<SafetensorsWriter> file;
    if (writes()) {
      file = std::make_unique<SafetensorsWriter>(directory / section.file, entries_of(section), metadata_);
    }
    for (const auto& [prefix, which] : section.tensors) {
      for (const auto& parameter : parameters_.parameters().all()) {
        const Tensor tensor = state_.gather(*parameter, which);
        if (file) file->write(tensor.raw(), tensor.bytes());
      }
    }
    if (file) file->finish();
  }

 private:
  const Communicator& world() const { return parameters_.mesh().world(); }

  std::vector<TensorEntry> entries_of(const Section& section) const {
    std::vector<TensorEntry> entries;
    for (const auto& [prefix, which] : section.tensors) {
      for (const auto& parameter : parameters_.parameters().all()) {
        entries.push_back({prefix + parameter->name, safetensors_type(state_.dtype()), parameter->global_shape});
      }
    }
    return entries;
  }

  const ShardedParameters& parameters_;
  WholeState state_;
  Notes metadata_;
};

Notes metadata_of(std::int64_t step, std::int64_t optimizer_steps, const Notes& notes) {
  Notes result = notes;
  for (const char* const key : own_keys) {
    require(!notes.contains(key), "A checkpoint has metadata '{}' of its own; give the note another name.", key);
  }
  result["format"] = "pt";
  result[step_key] = std::to_string(step);
  result[optimizer_steps_key] = std::to_string(optimizer_steps);
  return result;
}

// What has been written to a file, or which files a directory has, outlasts a crash of the machine from here on.
void sync_to_disk(const fs::path& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const bool synced = file >= 0 && (fsync(file) == 0 || errno == EINVAL);  // some file systems have no fsync of directories
  const int error = errno;
  if (file >= 0) close(file);
  if (!synced) fail(ErrorCode::io, "Cannot bring {} to the disk: {}.", path.string(), errno_text(error));
}

// Moves `with` to `path`. If there is a directory at `path` already, the two change places.
void exchange_directory(const fs::path& path, const fs::path& with) {
  if (renameat2(AT_FDCWD, with.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) == 0) return;
  if (errno == EINVAL || errno == ENOSYS) {  // a file system that cannot exchange: for a moment there is no checkpoint
    fs::remove_all(path);
  } else if (errno != ENOENT) {
    fail(ErrorCode::io, "Cannot put a checkpoint in the place of {}: {}.", path.string(), errno_text(errno));
  }
  fs::rename(with, path);
}

// Replaces a small file atomically.
void replace_file(const fs::path& path, const std::string& text) {
  const fs::path fresh = path.string() + ".new";
  std::ofstream out(fresh);
  out << text << '\n';
  out.close();
  try {
    if (!out) fail(ErrorCode::io, "Cannot write {}: {}.", path.string(), errno_text(errno));
    sync_to_disk(fresh);
    fs::rename(fresh, path);
  } catch (...) {
    std::remove(fresh.c_str());
    throw;
  }
}

void write_all(const CheckpointWriter& writer, const fs::path& directory, const std::string& name,
               const fs::path& unfinished) {
  if (writer.writes()) {
    fs::remove_all(unfinished);
    fs::create_directories(unfinished);
  }
  for (const Section& section : sections()) writer.write(section, unfinished);
  if (writer.writes()) {
    sync_to_disk(unfinished);
    exchange_directory(directory / name, unfinished);
    sync_to_disk(directory);
    replace_file(directory / "latest", name);
    sync_to_disk(directory);
    std::error_code ignored;
    fs::remove_all(unfinished, ignored);  // the earlier checkpoint of the same step
  }
}

// ---- reading

std::int64_t number_of(const SafetensorsReader& file, const char* key) {
  const std::string text = file.metadata(key);
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0) {
    fail(ErrorCode::io, "{} says '{}' for the metadata '{}', which is no number of steps.", file.path(), text, key);
  }
  return number;
}

Notes notes_of(const SafetensorsReader& file) {
  Notes notes = file.metadata();
  for (const char* const key : own_keys) notes.erase(key);
  return notes;
}

void read_section(const ShardedParameters& parameters, const AdamWOptimizer& optimizer, const Section& section,
                  const SafetensorsReader& file) {
  const WholeState state(parameters, optimizer);
  for (const auto& [prefix, which] : section.tensors) {
    for (const auto& parameter : parameters.parameters().all()) {
      const auto saved = file.tensor(prefix + parameter->name);
      require(saved.shape == parameter->global_shape, "{} has {} of shape [{}], but this model's is [{}].", file.path(),
              parameter->name, fmt::join(saved.shape, ", "), fmt::join(parameter->global_shape, ", "));
      state.set(*parameter, which, [&](std::int64_t i) { return saved.at(i); });
    }
  }
}

}  // namespace

void save_checkpoint(const ShardedParameters& parameters, const AdamWOptimizer& optimizer, const std::string& directory,
                     std::int64_t step, const Notes& notes) {
  const CheckpointWriter writer(parameters, optimizer, metadata_of(step, optimizer.steps(), notes));
  parameters.traffic().wait_for_values();
  const std::string name = fmt::format("step_{:08}", step);
  const fs::path unfinished = fs::path(directory) / ("." + name + ".unfinished");
  try {
    write_all(writer, directory, name, unfinished);
  } catch (const std::exception& error) {
    std::error_code ignored;
    if (writer.writes()) fs::remove_all(unfinished, ignored);
    const auto* filesystem = dynamic_cast<const fs::filesystem_error*>(&error);
    if (filesystem == nullptr) throw;
    fail(ErrorCode::io, "Cannot save a checkpoint in {}: {}.", directory, filesystem->code().message());
  }
  // No rank goes on, or ends, before the checkpoint is complete.
  parameters.mesh().world().barrier(Stream::inline_());
}

void remove_old_checkpoints(const std::string& directory, int keep) {
  require(keep >= 1, "Of the checkpoints in {}, {} cannot be kept; give 1 or more.", directory, keep);
  const fs::path newest = fs::path(find_checkpoint(directory)).filename();
  std::vector<fs::path> older, removed;
  try {
    for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
      const std::string name = entry.path().filename();
      if (name.starts_with("step_") && entry.is_directory() && name < newest) older.push_back(entry.path());
      if (name.starts_with(".step_") && name.ends_with(".removed"))
        removed.push_back(entry.path());  // by a run that was killed
    }
    std::sort(older.begin(), older.end(), std::greater<>());
    for (std::size_t i = static_cast<std::size_t>(keep) - 1; i < older.size(); ++i) {
      // Under another name first, so that no checkpoint is ever there in part.
      removed.push_back(older[i].parent_path() / ("." + older[i].filename().string() + ".removed"));
      fs::remove_all(removed.back());
      fs::rename(older[i], removed.back());
    }
    for (const fs::path& each : removed) fs::remove_all(each);
  } catch (const fs::filesystem_error& error) {
    fail(ErrorCode::io, "Cannot remove old checkpoints in {}: {}.", directory, error.code().message());
  }
}

std::string find_checkpoint(const std::string& directory) {
  if (fs::exists(fs::path(directory) / "model.safetensors")) return directory;
  std::ifstream latest(fs::path(directory) / "latest");
  std::string name;
  if (!std::getline(latest, name)) fail(ErrorCode::io, "There is no checkpoint in {}.", directory);
  return fs::path(directory) / name;
}

LoadedCheckpoint load_checkpoint(const ShardedParameters& parameters, AdamWOptimizer& optimizer,
                                 const std::string& checkpoint, bool with_optimizer) {
  LoadedCheckpoint loaded;
  for (const Section& section : sections()) {
    if (!with_optimizer && &section != &sections().front()) break;
    const SafetensorsReader file(fs::path(checkpoint) / section.file);
    const std::int64_t step = number_of(file, step_key);
    if (&section != &sections().front() && step != loaded.step) {
      fail(ErrorCode::io,
           "{} is of step {}, but the parameters beside it are of step {}; take both files of one checkpoint.", file.path(),
           step, loaded.step);
    }
    loaded.step = step;
    if (with_optimizer) loaded.optimizer_steps = number_of(file, optimizer_steps_key);
    loaded.notes = notes_of(file);
    read_section(parameters, optimizer, section, file);
  }
  return loaded;
}

}  // namespace stretto
