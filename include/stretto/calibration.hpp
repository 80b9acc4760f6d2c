#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "stretto/communicator.hpp"
#include "stretto/tuning.hpp"

// Measurements that the choice of methods rests on: which method is the fastest for a call, and what a message costs. A
// job measures a machine that it does not know (STRETTO_CALIBRATE); `stretto-perf calibrate` measures it for longer. The
// idea is that of STAR-MPI (Faraj, Yuan and Lowenthal 2006), which tries algorithms in the program's own calls; here all of
// them are tried before the program's first call, so that equal calls of a job give equal sums from its first to its last.
namespace stretto {

struct MethodTime {
  Method method;
  double seconds = 0;  // of one call, in a loop without barriers; the mean of all ranks or, with a root, the slowest one's
};

// The times of one call by several methods. The same on all ranks.
struct STRETTO_API CallTimes {
  PlanRequest request;     // of rank 0, without a method
  std::int64_t bytes = 0;  // of the whole vector, as rules count them
  bool symmetric = false;  // whether the buffers were in symmetric memory
  std::vector<MethodTime> methods;

  double of(const Method& method) const;  // infinite if it was not timed
  const MethodTime& fastest() const;      // of at least one
};

// How long TimedCall::time() looks at a method. Every method is looked at a few times, in turn with the others, so that
// other load on the machine meets all of them; the time that a quarter of the looks did not exceed counts. A method that is
// given up (hopeless) has the least time of its first look and the calls before it. Those that take at most 1.5 times as
// long as the fastest are then timed for `seconds`.
struct Effort {
  int looks = 2;
  bool counts_median = false;  // instead of the time that a quarter of the looks did not exceed
  // Methods are not looked at again that took more than so many times as long as the fastest one, both in their first look
  // and in the calls before it.
  double hopeless = 1e9;
  int most_calls = 200;  // of a look; fewer if their vectors have more than most_bytes in all
  std::int64_t most_bytes = 1 << 20;
  double look_seconds = 1;  // of a look, whose calls are then fewer, too; by the shortest call before
  int least_of_look = 1;    // calls of a look, however long they take, unless most_calls or most_bytes allow fewer
  double seconds = 0.01;    // of a good method's own measurement; 0: none
  int least_calls = 3;      // in these seconds
};

// The input and output of a call, which further calls may use: the first use of memory takes longer than a large call.
struct STRETTO_API TimedBuffers {
  std::shared_ptr<std::byte> input, output;
  std::int64_t bytes = 0;  // of each
  bool symmetric = false;

  static TimedBuffers of(std::int64_t bytes, bool symmetric);
};

// A collective with buffers on the host, to be timed: sums of f32, and moves of f32, with root 0.
class STRETTO_API TimedCall {
 public:
  // Elements of a rank's share, or of the vector, if the vector has that many bytes. 0: too few for a share of each rank.
  static std::int64_t count_of(Collective collective, std::int64_t bytes, int ranks);
  // Collective. Allocates twice the vector on each rank.
  TimedCall(const Communicator& communicator, Collective collective, std::int64_t count, bool symmetric);
  // The buffers, on all ranks of the same kind of memory, have at least the bytes of the vector.
  TimedCall(const Communicator& communicator, Collective collective, std::int64_t count, TimedBuffers buffers);

  const PlanRequest& request() const { return request_; }
  std::int64_t bytes() const;
  bool is_symmetric() const { return buffers_.symmetric; }
  Method chosen() const;  // by the library, with what it knows so far
  // Collective. The times of these methods, without those that this call cannot be done by between these ranks. Methods that
  // are in `always` get a measurement of their own, however slow they are.
  CallTimes time(const std::vector<Method>& methods, const Effort& effort, const std::vector<Method>& always = {}) const;

 private:
  Communicator communicator_;
  PlanRequest request_;
  TimedBuffers buffers_;
  Call call_;
};

// The collectives that have a choice of methods, but for the barrier.
STRETTO_API const std::vector<Collective>& timed_collectives();
// The methods within a node that can do a collective of so many elements, in every number of lanes and some numbers of
// pieces, none of which would be empty.
STRETTO_API std::vector<Method> methods_within_node(Collective collective, std::int64_t elements);

// Up to so many bytes a call takes one method for both kinds of memory, and measured_route() needs its times in ordinary
// memory only: ranks that told each other where their buffers are would need longer than the call.
inline constexpr std::int64_t alike_up_to = 1024;

// The measurements of a route, as a tuning file has them: costs for the cost model, and for each kind of memory the table of
// the fastest methods.
struct STRETTO_API MeasuredRoute {
  RouteCost route;  // without rules
  std::string table, symmetric_table;
  std::string to_json() const;  // an element of a tuning file's "routes"
};
// Fits the costs to the times: non-negative least squares of relative errors. Sizes must ascend in each collective. A table
// changes its method only where that gains 5% or more, since a method that is faster at a single size is often noise.
// Between two sizes a method's time counts as a power of the bytes, and a third method that gains as much where the table
// would change has the range between the other two. `reach` is how many times as many bytes as the largest size it says
// something of, at most 4 where that is less than 1 MiB; 0: any number. From twice the largest size on, a method in pieces
// gets four times as many for four times as many bytes, up to most_pieces.
STRETTO_API MeasuredRoute measured_route(const std::string& route, int ranks, double ranks_per_core,
                                         const std::vector<CallTimes>& times, int reach = 0);
// The table alone: "all_reduce:0-4096:packet,4096-inf:ring;...".
STRETTO_API std::string table_of(const std::vector<CallTimes>& times, int reach = 0);

}  // namespace stretto
