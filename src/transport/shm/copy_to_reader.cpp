#include "transport/shm/copy_to_reader.hpp"

#include <cstring>

#include "device/stream/ticks.hpp"
#include "stretto/kernels.hpp"

namespace stretto {
namespace {

constexpr std::size_t line = 64;
constexpr std::size_t watched_from = 4096;  // bytes; a shorter copy takes little longer than two reads of the clock
// The first write to a page takes as long as a line from afar takes for each of its lines.
constexpr std::size_t unwatched_bytes = std::size_t{4} << 20;
constexpr int copies_for_each_watched = 4;
constexpr std::size_t bypassed_from = 2048;  // below, waiting for the stores costs more than they save
// Within a shared cache a line takes 2 to 7 ns, from afar 30 and more.
constexpr double seconds_from_afar = 20e-9;
constexpr int slow_copies = 4;  // in a row: a single one may have been interrupted
constexpr int bypassed_copies = 1024;

}  // namespace

void CopyToReader::operator()(void* to, const void* from, std::size_t bytes) {
  if (to_bypass_ > 0 && bytes >= bypassed_from) {
    --to_bypass_;
    return kernels::copy(from, to, bytes, true);
  }
  const bool touches_pages = copied_ < unwatched_bytes;
  if (touches_pages) copied_ += bytes;
  if (bytes < watched_from || touches_pages || ++since_watched_ < copies_for_each_watched) {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return;
  }
  since_watched_ = 0;
  static const TickClock clock;
  const std::uint64_t begin = ticks();
  std::memcpy(to, from, bytes);
  const Span span = clock.seconds_of(begin, ticks());
  watch(span.end - span.begin, bytes);
}

// After copies that bypassed the caches, one slow copy shows that lines still come from afar.
void CopyToReader::watch(double seconds, std::size_t bytes) {
  const bool slow = seconds * line > seconds_from_afar * static_cast<double>(bytes);
  slow_in_a_row_ = slow ? slow_in_a_row_ + 1 : 0;
  if (slow_in_a_row_ < slow_copies) return;
  slow_in_a_row_ = slow_copies - 1;
  to_bypass_ = bypassed_copies;
}

}  // namespace stretto
