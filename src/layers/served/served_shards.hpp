#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "layers/served/table_parameters.hpp"
#include "stretto/layers/optimizer.hpp"
#include "stretto/server.hpp"

// Checkpoints of the tables of parameter servers. One worker asks (ServerSet::ask) while no worker has a push or a pull
// under way. Each server writes its parts into a shard of its own, or reads them from the shards of any checkpoint, and
// needs memory for one piece of a part.
//
// A server that the others have left behind may still run, and write while another server has its number and writes, too. So
// each server writes under a name that no other server and no other checkpoint has, and the worker renames the shards of
// those servers whose answers it has.
namespace stretto {

// The worker calls these. They throw the error of the first server that has one.
std::vector<std::int64_t> write_served_shards(ServerSet& servers, const std::filesystem::path& directory,
                                              const std::string& id);  // returns the shards' digests, as bits
// Writes shards of one byte. Returns their number.
std::size_t try_served_shards(ServerSet& servers, const std::filesystem::path& directory, const std::string& id);
void read_served_shards(ServerSet& servers, const std::string& checkpoint, bool with_optimizer);

// A server answers these calls with it.
class ServedShards {
 public:
  // rank: the server's, at first; no other server of the set has it. tables: all, in the set's order. kind: its slots are
  // the state of the tables' updates. When values and state have been read, answer() calls begin_behind() with the number of
  // the optimizer's steps that made them.
  ServedShards(int rank, std::vector<TableParameters> tables, OptimizerKind kind,
               std::function<void(std::int64_t)> begin_behind);
  std::string answer(const ServerSet::Question& question) const;

 private:
  std::uint64_t write(const ServerSet::Question& question, const std::filesystem::path& directory,
                      const std::string& id) const;
  void read(const ServerSet::Question& question, const std::string& checkpoint, bool with_optimizer) const;

  std::string own_name(const std::string& id) const;  // of its shard

  int rank_;
  std::vector<TableParameters> tables_;
  OptimizerKind kind_;
  std::function<void(std::int64_t)> begin_behind_;
};

}  // namespace stretto
