// ServerSide: what a server says of itself.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <vector>

#include "server/server_side.hpp"

namespace stretto {
namespace {

const char* name_of(Consistency::Kind kind) {
  switch (kind) {
    case Consistency::Kind::bounded: return "bounded";
    case Consistency::Kind::exact: return "exact";
    case Consistency::Kind::eventual: return "eventual";
  }
  return "";
}

std::string text(const Consistency& consistency) {
  return fmt::format("consistency {} {}", name_of(consistency.kind), consistency.delay);
}

}  // namespace

// Neighbours of the same clocks and queues are one line.
std::string ServerSide::state() const {
  const std::lock_guard lock(mutex_);
  std::size_t parts = 0;
  std::uint64_t bytes = 0;
  std::string lines;
  const std::string of_set = text(layout_.options.consistency);
  for (std::size_t t = 0; t < layout_.tables.size(); ++t) {
    const ServedLayout::Table& table = layout_.tables[t];
    std::string last, own = text(layout_.consistency_of(table.served));
    own = own == of_set ? "" : fmt::format("; {}", own);
    std::vector<PartKey> alike;
    const auto end_line = [&] {
      if (!alike.empty()) lines += fmt::format("{}\n  {}\n", layout_.name_parts(alike), last);
      alike.clear();
    };
    for (std::size_t p = 0; p < table.parts.size(); ++p) {
      const auto found = copies_.find({t, p});
      if (found == copies_.end()) continue;
      const Copy& copy = found->second;
      std::string text = copy.moved && copy.moved->to ? "moved to a server that has joined" : "its values have not come yet";
      if (copy.part) {
        ++parts;
        bytes += static_cast<std::uint64_t>(table.parts[p].count) * size_of(table.served.dtype);
        std::vector<std::int64_t> clocks;
        clocks.reserve(static_cast<std::size_t>(layout_.workers));
        for (int worker = 0; worker < layout_.workers; ++worker) clocks.push_back(copy.part->clock(worker));
        text = fmt::format("version {}, clocks of workers {}, {} pushes and {} pulls wait", copy.part->version(),
                           fmt::join(clocks, " "), copy.part->waiting_pushes(), copy.part->waiting_pulls());
      }
      text += fmt::format("; at rank{} {}", copy.chain.size() > 1 ? "s" : "", fmt::join(copy.chain, ", ")) + own;
      if (text != last) end_line();
      last = text;
      alike.emplace_back(t, p);
    }
    end_line();
  }
  return fmt::format(
      "Server {} of {}, rank {} of {}, process {}: {} parts, {} bytes of dense tables, {} copies; {}\n"
      "{} messages of {} bytes wait to be handled; sent {} messages, {} bytes of values and {} of heads\n{}",
      live_.rank() - layout_.workers + 1, layout_.ranks - layout_.workers, live_.rank(), layout_.ranks, getpid(), parts,
      bytes, layout_.options.copies, of_set, queue_.messages, queue_.bytes, traffic_.messages_sent, traffic_.payload_sent,
      traffic_.heads_sent, lines);
}

}  // namespace stretto
