#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "stretto/communicator.hpp"
#include "stretto/server.hpp"

namespace stretto {

// The parts of a server set's tables, and for each part its servers, in the order in which they take over. All ranks have
// the same layout. A rank's number is the one in the communicator of the constructor.
struct ServedLayout {
  struct Part {
    std::int64_t first = 0, count = 0;  // elements; of a sparse table 0
    std::vector<int> servers;           // all
  };
  struct Table {
    ServedTable served;
    std::vector<Part> parts;  // of a sparse table, of the keys with some hashes
    std::int64_t part_of(std::uint64_t key) const;
  };
  using PartKey = std::pair<std::size_t, std::size_t>;  // table, part

  // Collective. Throws Error(invalid_argument) for tables and options that cannot be, on all ranks.
  ServedLayout(const Communicator& ranks, std::vector<ServedTable> served, const ServerSet::Options& options);

  Consistency consistency_of(const ServedTable& table) const { return table.consistency.value_or(options.consistency); }
  const Table& table(int number) const;  // throws Error(invalid_argument) if there is none
  bool is_server(int rank) const { return rank >= workers; }
  std::uint64_t ring_key(const PartKey& key) const;  // its key on the hash ring
  bool is_spare(int rank) const { return rank >= ranks - options.spares; }
  bool goes_on() const { return options.survivors_go_on || options.copies > 0; }
  // The servers that have a part when some are lost: 1 + copies, or fewer if no more are left.
  std::vector<int> chain(const Part& part, const std::function<bool(int rank)>& is_left) const;
  std::int64_t all_parts() const;  // of all tables
  // A table's parts as this worker sends them: one to each server in turn. Workers begin a turn with different servers, so
  // that not all of them send to the same one at a time.
  std::vector<std::size_t> sending_order(std::size_t table, int worker) const;
  // "elements 0 to 299, 600 to 899 of table weights, 2 of 8 parts of the keys of table visits"
  std::string name_parts(const std::vector<PartKey>& parts) const;

  ServerSet::Options options;
  int workers = 0, ranks = 0;
  std::vector<Table> tables;
};

}  // namespace stretto
