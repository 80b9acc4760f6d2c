#pragma once
#include <filesystem>
#include <string>
#include <string_view>

// How files outlast a crash of the machine, and how a directory appears or goes at once. All functions throw Error(io), or
// std::filesystem::filesystem_error.
namespace stretto {

// Returns when the content of a file, or the list of a directory's files, is on the disk.
void sync_to_disk(const std::filesystem::path& path);

// Writes a whole file of an unfinished checkpoint, which nobody looks at yet, and brings it to the disk.
void write_to_disk(const std::filesystem::path& path, std::string_view text);

// Moves `with` to `path`. If there is a directory at `path` already, the two change places.
void exchange_directory(const std::filesystem::path& path, const std::filesystem::path& with);

// ---- Checkpoints under a directory

std::string checkpoint_name(std::int64_t step);                            // "step_00000200"
bool names_a_step(const std::string& name);                                // whether it is such a name
std::filesystem::path unfinished_name(const std::filesystem::path& name);  // ".step_00000200.unfinished"

// Makes an empty directory for an unfinished checkpoint, and removes what a killed job has left: unfinished checkpoints, and
// old ones that it was removing.
void begin_checkpoint(const std::filesystem::path& directory, const std::string& name);
// Gives the unfinished checkpoint its name. An earlier one of that name goes at once.
void publish_checkpoint(const std::filesystem::path& directory, const std::string& name);
// Removes what is left of an unfinished checkpoint. Never throws.
void discard_checkpoint(const std::filesystem::path& directory, const std::string& name);
// Removes all but the newest `keep` complete checkpoints. Those of later steps than the newest one, which a resumed job has
// yet to replace, stay, and so does an unfinished one. A checkpoint loses its name before its files go.
void remove_old_checkpoints(const std::filesystem::path& directory, int keep);

}  // namespace stretto
