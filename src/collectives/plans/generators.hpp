#pragma once
#include "collectives/plan_builder.hpp"

// One function a family and collective; make_plan() chooses among them.
namespace stretto::plans {

Plan ring_all_reduce(const PlanRequest& request);
Plan ring_reduce_scatter(const PlanRequest& request);
Plan ring_all_gather(const PlanRequest& request);

Plan halving_doubling_all_reduce(const PlanRequest& request);
Plan halving_reduce_scatter(const PlanRequest& request);
Plan doubling_all_gather(const PlanRequest& request);

Plan recursive_doubling_all_reduce(const PlanRequest& request);

Plan binomial_broadcast(const PlanRequest& request);
Plan binomial_reduce(const PlanRequest& request);

Plan direct_send(const PlanRequest& request);
Plan direct_recv(const PlanRequest& request);

}  // namespace stretto::plans
