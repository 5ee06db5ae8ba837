"""What a replica is in a cluster, as plain objects of its API: Pods, Deployments, Services, budgets of disruption."""
