#include "server/served_layout.hpp"

#include <map>
#include <string>
#include <utility>

#include "core/fail.hpp"
#include "core/parts.hpp"
#include "stretto/require_same.hpp"

namespace stretto {
namespace {

std::string text(const ServedTable& table, const ServerSet::Options& options) {
  return fmt::format("{} of {} {}, rows of {}, {} servers, {} points, parts of {}, consistency {} {}", table.name,
                     table.elements, name(table.dtype), table.width, options.servers, options.points, options.part_elements,
                     static_cast<int>(options.consistency.kind), options.consistency.delay);
}

void check(const ServedTable& table, const ServerSet::Options& options) {
  require((table.elements > 0) != (table.width > 0) && table.update.make != nullptr,
          "Table {} has {} elements, rows of {} and {} update; it needs elements or rows, and an update.", table.name,
          table.elements, table.width, table.update.make ? "an" : "no");
  require(table.width == 0 || !table.update.keeps_state,
          "Table {} is sparse, and its update keeps state, which would mix its keys; give one that keeps none.", table.name);
  require(table.width == 0 || options.consistency.kind != Consistency::Kind::exact,
          "Table {} is sparse, and exact consistency keeps versions of whole parts; choose another.", table.name);
}

}  // namespace

ServedLayout::ServedLayout(const Communicator& ranks, std::vector<ServedTable> served, const ServerSet::Options& given)
    : options(given), workers(ranks.size() - given.servers), ring(given.points) {
  require(0 < options.servers && options.servers < ranks.size(), "{} servers of {} ranks leave no worker, or are none.",
          options.servers, ranks.size());
  require(
      options.points > 0 && options.part_elements > 0 && options.consistency.delay >= 0,
      "Servers with {} points, parts of {} elements and a delay of {} cannot be; give points and elements from 1 on, and "
      "a delay from 0 on.",
      options.points, options.part_elements, options.consistency.delay);
  std::vector<NamedValue> same;
  for (const ServedTable& table : served) {
    check(table, options);
    same.push_back({"a table", text(table, options)});
  }
  require_same(ranks, same);
  for (int server = workers; server < ranks.size(); ++server) ring.add(server);
  for (ServedTable& table : served) {
    Table& its = tables.emplace_back();
    const auto parts = static_cast<int>(table.elements == 0 ? 0 : (table.elements - 1) / options.part_elements + 1);
    const int most = (parts + options.servers - 1) / options.servers;  // of a server
    std::map<int, int> of_server;
    for (int p = 0; p < parts; ++p) {
      const std::uint64_t key = (static_cast<std::uint64_t>(tables.size()) << 32) + static_cast<std::uint64_t>(p);
      const int server = ring.owner(key, [&](int each) { return of_server[each] < most; });
      ++of_server[server];
      its.parts.push_back({part_begin(table.elements, parts, p), part_size(table.elements, parts, p), server});
    }
    its.served = std::move(table);
  }
}

const ServedLayout::Table& ServedLayout::table(int number) const {
  require(number >= 0 && number < std::ssize(tables), "There is no table {}; {} are served.", number, tables.size());
  return tables[static_cast<std::size_t>(number)];
}

}  // namespace stretto
