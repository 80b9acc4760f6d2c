#pragma once
#include <memory>
#include <string>
#include <vector>

#include "collectives/communicator/operation.hpp"

namespace stretto {

// Puts the calls into their streams as one task, in which they progress together; the work becomes that of all. Throws if
// they cannot go together: messages to oneself without a partner, or memory that two of them would write at the same time.
// In a rehearsal, the calls may be skipped, or waited for at once (stretto/overlap/rehearsal.hpp).
void launch(const std::vector<PendingCall>& calls, const Work& work);

// STRETTO_CHECK: tells the other ranks, which may have been called correctly, that this rank refused its call for the reason
// `why`, and will not come. If all ranks were called wrongly in the same way, nothing happens.
void launch_refusal(const std::shared_ptr<Communicator::Group>& group, const Call& call, const OperationOptions& options,
                    const std::string& why, const Stream& stream);

}  // namespace stretto
