#include "perf/from_ranks.hpp"

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "common/fail.hpp"
#include "stretto/launch.hpp"

namespace perf {

std::optional<nlohmann::ordered_json> from_ranks(
    int nproc, const std::function<nlohmann::ordered_json(const stretto::Communicator&)>& body) {
  // Rank 0 writes into an open file, which the processes of the ranks inherit.
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::tmpfile(), std::fclose);
  if (!file) fail(stretto::ErrorCode::io, "No temporary file can be made; look at what TMPDIR names.");
  bool is_first = false;  // rank 0 of a job that a launcher has started
  const int status = stretto::launch(nproc, [&](const stretto::Communicator& world) {
    const std::string text = body(world).dump();
    if (world.rank() != 0) return;
    is_first = true;
    const bool complete =
        std::fwrite(text.data(), 1, text.size(), file.get()) == text.size() && std::fflush(file.get()) == 0;
    if (!complete) fail(stretto::ErrorCode::io, "{} bytes of figures do not fit into a temporary file.", text.size());
  });
  if (status != 0) return std::nullopt;
  if (nproc == 0 && !is_first) return nlohmann::ordered_json();
  std::rewind(file.get());
  return nlohmann::ordered_json::parse(file.get());
}

}  // namespace perf
