#pragma once
#include <memory>
#include <string>
#include <vector>

#include "collectives/communicator/operation.hpp"

namespace stretto {

// Puts the calls into their streams as one task, in which they progress together; `work` becomes the work of all of them.
// Throws if they cannot run together: messages to oneself without a partner, or memory that two calls would write at the
// same time. In a rehearsal, the calls may be skipped, or waited for at once (stretto/overlap/rehearsal.hpp).
void launch(const std::vector<PendingCall>& calls, const Work& work);

// STRETTO_CHECK: tells the other ranks that this rank refused its call, for the reason `why`, and will not take part; the
// others may have been called correctly. If all ranks were called wrongly in the same way, nothing happens.
void launch_refusal(const std::shared_ptr<Communicator::Group>& group, const Call& call, const OperationOptions& options,
                    const std::string& why, const Stream& stream);

}  // namespace stretto
