#include <filesystem>
#include <system_error>

#include "core/fail.hpp"
#include "stretto/models/model_files.hpp"
#include "stretto/output_file.hpp"

namespace stretto {

namespace fs = std::filesystem;

namespace {

fs::path finished_path(const std::string& directory) {
  return followed((fs::path(directory) / "").lexically_normal().parent_path());  // without a slash behind it
}

fs::path unfinished_path(const std::string& directory) { return finished_path(directory).string() + ".unfinished"; }

[[noreturn]] void fail_to_export(const std::string& directory, const std::error_code& error) {
  fail(ErrorCode::io, "Cannot export the model to {}: {}.", directory, error.message());
}

}  // namespace

void export_hf(Trainer& trainer, const std::string& directory, std::optional<std::int32_t> end_of_text,
               const std::function<void(const std::string& directory)>& add_files) {
  const Communicator& world = trainer.mesh().world();
  const DecoderShape& shape = trainer.model().shape();
  const fs::path finished = finished_path(directory);
  const fs::path unfinished = unfinished_path(directory);
  const bool writes = world.rank() == 0;
  try {
    if (writes) {
      fs::remove_all(unfinished);
      fs::create_directories(unfinished);
      write_output_file(unfinished / "config.json", config_text(shape, end_of_text));
      add_files(unfinished);
    }
    write_weights(trainer.sharded(), trainer.optimizer(), unfinished / "model.safetensors",
                  [&](const Parameter& parameter) { return foreign_rows(shape, parameter, shape.sequence); },
                  {{"format", "pt"}});
    if (writes) fs::rename(unfinished, finished);
  } catch (const std::exception& error) {
    std::error_code ignored;
    if (writes) fs::remove_all(unfinished, ignored);
    const auto* filesystem = dynamic_cast<const fs::filesystem_error*>(&error);
    if (filesystem == nullptr) throw;
    fail_to_export(directory, filesystem->code());
  }
  world.barrier(Stream::inline_()).wait();  // no rank goes on, or ends, before it is complete
}

void check_hf_export(const std::string& directory, const DecoderShape& shape) {
  std::ignore = family_name(shape);
  std::error_code error;
  const fs::path finished = finished_path(directory);
  const bool is_there = fs::exists(finished, error);
  if (is_there && !(fs::is_directory(finished, error) && fs::is_empty(finished, error)) && !error) {
    fail(ErrorCode::io, "There is something in {} already; export to a directory that does not exist.", directory);
  }
  const std::vector<fs::path> made = missing_directories(unfinished_path(directory));
  if (!error) fs::create_directories(unfinished_path(directory), error);
  std::error_code ignored;
  for (const fs::path& each : made) fs::remove(each, ignored);
  if (error) fail_to_export(directory, error);
}

}  // namespace stretto
