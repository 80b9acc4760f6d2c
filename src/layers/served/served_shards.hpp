#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "layers/served/table_parameters.hpp"
#include "stretto/layers/optimizer.hpp"
#include "stretto/server.hpp"

// Checkpoints of what parameter servers hold. One worker asks (ServerSet::ask) while no other has a push or a pull under
// way; each server writes what it has into a shard of its own, or reads it from the shards of any checkpoint. No server
// needs more memory than for a piece of a part.
namespace stretto {

// At the worker. They throw the error of the first server that has one.
std::vector<std::int64_t> write_served_shards(ServerSet& servers, const std::filesystem::path& directory,
                                              const std::string& id);  // returns the shards' digests, as bits
std::size_t try_served_shards(ServerSet& servers, const std::filesystem::path& directory);  // of a byte; their number
void read_served_shards(ServerSet& servers, const std::string& checkpoint, bool with_optimizer);

// At a server: the answers.
class ServedShards {
 public:
  // tables: all, in the set's order. kind: its slots are the state of the tables' updates. begin_behind(steps) is called
  // when values and state have been read that so many steps of an optimizer have made.
  ServedShards(std::vector<TableParameters> tables, OptimizerKind kind, std::function<void(std::int64_t)> begin_behind);
  std::string answer(const ServerSet::Question& question) const;

 private:
  std::uint64_t write(const ServerSet::Question& question, const std::filesystem::path& directory,
                      const std::string& id) const;
  void read(const ServerSet::Question& question, const std::string& checkpoint, bool with_optimizer) const;

  std::vector<TableParameters> tables_;
  OptimizerKind kind_;
  std::function<void(std::int64_t)> begin_behind_;
};

}  // namespace stretto
