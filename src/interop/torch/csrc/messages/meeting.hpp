#pragma once
#include <functional>
#include <string>

#include "stretto/launch.hpp"
#include "torch_version.hpp"

// How ranks that share a c10d store become a job of Stretto's: one of them listens, and leaves word in the store of where
// that is, and of the secret that the others need.
namespace stretto_torch {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

// The address by which this host is reached from wherever the store is.
std::string own_address(const StorePtr& store);

void publish_meeting(const StorePtr& store, const std::string& key, const stretto::MeetingPoint& point);
stretto::MeetingPoint read_meeting(const StorePtr& store, const std::string& key);

// Whether the key came before goes_on said no or threw. It only looks now and then: to wait inside a store would keep this
// process's other threads out of it.
bool await_key(const StorePtr& store, const std::string& key, const std::function<bool()>& goes_on);

// Collective over all ranks that have this store: the communicator of them all.
stretto::Communicator meet(const StorePtr& store, int rank, int size, Milliseconds timeout);

}  // namespace stretto_torch
