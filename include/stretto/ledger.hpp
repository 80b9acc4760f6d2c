#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "stretto/dtype.hpp"
#include "stretto/plan.hpp"
#include "stretto/stream.hpp"

// What a rank communicated: the source of the trainer's communication columns, of the tests that hold traffic against a
// formula, and of what a timeout prints. It costs an operation that runs at once (on an inline stream, between ranks of one
// host) two looks at the clock and 24 bytes stored, others an allocation. Whoever looks, and whoever enters an operation,
// collects first what has run at once since the last time, and makes a record of each. It synchronises no streams.
namespace stretto {

class FastPathLog;

// Between whom an operation moves bytes: of all operations that are done in the same way, the same object. All are ranks of
// the job.
struct Partners {
  std::uint32_t group_id = 0;      // the same on all members; with them it means one communicator
  std::vector<int> members;        // of the communicator, in their order
  std::vector<int> sends_to;       // or into whose memory this rank writes
  std::vector<int> receives_from;  // or in whose memory it reads
};

struct STRETTO_API Record {
  // Counts this rank's operations, of all communicators: those of streams when they are enqueued; those that ran at once
  // when somebody looks or something is enqueued, in the order of their beginnings among themselves.
  std::uint64_t sequence = 0;
  Collective collective = Collective::all_reduce;
  Algorithm algorithm = Algorithm::automatic;  // the one that was chosen
  std::string group;                           // name of the communicator
  int group_size = 0;
  DType dtype = DType::f32;                           // on the wire ...
  QuantizedFormat quantized = QuantizedFormat::none;  // ... but where it is quantized: then this is
  std::int64_t count = 0;                             // elements, as the caller gave them
  std::uint64_t bytes_sent = 0;  // by this rank; over shared memory, what it read from others' memory or wrote there
  std::uint64_t bytes_between_nodes = 0;  // of these, to ranks of other nodes
  std::shared_ptr<const Partners> partners;
  std::string stream;
  std::string tag;  // the caller's
  WorkTimes times;
  bool shares_times = false;      // they are those of an earlier record of the same group of operations: count them once
  std::string to_string() const;  // one line
};

struct STRETTO_API Traffic {  // sums over records
  std::uint64_t operations = 0;
  std::uint64_t bytes_sent = 0;
  std::uint64_t bytes_between_nodes = 0;
  double busy_seconds = 0;     // between start and end; operations on several streams count each
  double exposed_seconds = 0;  // in which computing threads were blocked for them
  Traffic& operator+=(const Record& record);
};

// One for each rank. Safe from any thread. Keeps the last STRETTO_LEDGER records.
class STRETTO_API Ledger {
 public:
  Ledger();
  ~Ledger();

  std::uint64_t next_sequence() const;
  std::vector<Record> records(std::uint64_t since = 0) const;  // from that sequence number on
  Traffic traffic(std::uint64_t since = 0) const;
  std::string last_operations(int count) const;  // a line each, newest last

  // For communicators: enters an operation; its times are read from the work, once that is attached.
  std::uint64_t enter(Record record);
  void attach(std::uint64_t sequence, const Work& work);
  // For what was decided only when all ranks had come: how it was done, and what that moved; the rest of the record counts
  // for nothing.
  void settle(std::uint64_t sequence, const Record& how);
  // Whose operations it collects when somebody looks; until nobody else holds it.
  void add(std::shared_ptr<FastPathLog> journal);
  std::size_t most_records() const;

 private:
  struct STRETTO_HIDDEN Book;
  std::unique_ptr<Book> book_;
};

}  // namespace stretto
