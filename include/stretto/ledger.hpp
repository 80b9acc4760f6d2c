#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "stretto/dtype.hpp"
#include "stretto/plan.hpp"
#include "stretto/stream.hpp"

// The ledger: a log of a rank's communication. The trainer's communication columns, the tests that compare traffic with
// a formula, and the report of a timeout are made from it. It synchronises no streams. Cost: an operation that runs at
// once (on an inline stream, between ranks of one host) costs two looks at the clock and 24 bytes stored; other
// operations cost an allocation. Operations that ran at once become records later: when the ledger is read, or when the
// next operation is entered.
namespace stretto {

class FastPathLog;

// The ranks between which an operation moves bytes. Operations that are done in the same way share one object. All
// numbers are ranks in the job.
struct Partners {
  std::uint32_t group_id = 0;      // the same on all members; together with `members` it identifies the communicator
  std::vector<int> members;        // the communicator's ranks, in order
  std::vector<int> sends_to;       // ranks to which this rank sends, or into whose memory it writes
  std::vector<int> receives_from;  // ranks from which this rank receives, or whose memory it reads
};

struct STRETTO_API Record {
  // The operation's number on this rank, over all communicators. An operation in a stream gets its number when it is
  // enqueued. An operation that ran at once gets it when it becomes a record; such operations are ordered by their
  // beginnings.
  std::uint64_t sequence = 0;
  Collective collective = Collective::all_reduce;
  Algorithm algorithm = Algorithm::automatic;  // the chosen one
  std::string group;                           // name of the communicator
  int group_size = 0;
  DType dtype = DType::f32;                           // of elements on the wire, unless they are quantized
  QuantizedFormat quantized = QuantizedFormat::none;  // the format on the wire, if they are quantized
  std::int64_t count = 0;                             // elements, as the caller gave them
  std::uint64_t bytes_sent = 0;  // by this rank; over shared memory, bytes that it read from or wrote to others' memory
  std::uint64_t bytes_between_nodes = 0;  // the part of bytes_sent that went between nodes
  std::shared_ptr<const Partners> partners;
  std::string stream;
  std::string tag;  // OperationOptions::tag
  WorkTimes times;
  bool shares_times = false;      // `times` are those of an earlier record of the same OperationGroup: count them once
  std::string to_string() const;  // one line
};

struct STRETTO_API Traffic {  // sums over records
  std::uint64_t operations = 0;
  std::uint64_t bytes_sent = 0;
  std::uint64_t bytes_between_nodes = 0;
  double busy_seconds = 0;     // from start to end; operations that run at the same time all count
  double exposed_seconds = 0;  // for which computation was blocked by them (WorkTimes::waited)
  Traffic& operator+=(const Record& record);
};

// Each rank has one. Any thread may call any function. Keeps the last STRETTO_LEDGER records.
class STRETTO_API Ledger {
 public:
  Ledger();
  ~Ledger();

  std::uint64_t next_sequence() const;
  std::vector<Record> records(std::uint64_t since = 0) const;  // records from that sequence number on
  Traffic traffic(std::uint64_t since = 0) const;
  std::string last_operations(int count) const;  // one line per operation, newest last

  // Internal, for communicators: enters an operation. Its times are read from the work, once that is attached.
  std::uint64_t enter(Record record);
  void attach(std::uint64_t sequence, const Work& work);
  // Internal, for operations whose method was decided only when all ranks had come: copies the method, the bytes and
  // the partners from `how`. Other fields of `how` are ignored.
  void settle(std::uint64_t sequence, const Record& how);
  // Internal: a communicator's log of operations that ran at once. It is read until the ledger is its only owner.
  void add(std::shared_ptr<FastPathLog> journal);
  std::size_t most_records() const;

 private:
  struct STRETTO_HIDDEN Book;
  std::unique_ptr<Book> book_;
};

}  // namespace stretto
