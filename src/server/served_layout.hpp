#pragma once
#include <cstdint>
#include <vector>

#include "stretto/communicator.hpp"
#include "stretto/server.hpp"

namespace stretto {

// What a server set serves, and where: which part of a table lies at which server. The same on all ranks.
struct ServedLayout {
  struct Part {
    std::int64_t first = 0, count = 0;
    int server = 0;  // its rank
  };
  struct Table {
    ServedTable served;
    std::vector<Part> parts;  // of a dense table
  };

  // Collective. Throws Error(invalid_argument) for tables and options that cannot be, on all ranks.
  ServedLayout(const Communicator& ranks, std::vector<ServedTable> served, const ServerSet::Options& options);

  const Table& table(int number) const;  // throws Error(invalid_argument) if there is none
  bool is_server(int rank) const { return rank >= workers; }

  ServerSet::Options options;
  int workers = 0;
  std::vector<Table> tables;
  HashRing ring;  // deals out parts, and the keys of sparse tables
};

}  // namespace stretto
